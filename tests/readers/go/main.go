// Reads one JSON object a line as encoding/json does, and writes the members that it found, or null if it refuses the line.
package main

import (
	"bufio"
	"encoding/json"
	"os"
)

type read struct {
	Name      any `json:"name"`
	URI       any `json:"uri"`
	Arguments *struct {
		Path    any `json:"path"`
		Options *struct {
			Mode any `json:"mode"`
		} `json:"options"`
	} `json:"arguments"`
	Ref *struct {
		Type any `json:"type"`
		Name any `json:"name"`
		URI  any `json:"uri"`
	} `json:"ref"`
	Mode            any `json:"mode"`
	Message         any `json:"message"`
	URL             any `json:"url"`
	SystemPrompt    any `json:"systemPrompt"`
	Description     any `json:"description"`
	RequestedSchema *struct {
		Title any `json:"title"`
	} `json:"requestedSchema"`
	InputSchema *struct {
		Type any `json:"type"`
	} `json:"inputSchema"`
	Annotations *struct {
		Title any `json:"title"`
	} `json:"annotations"`
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for in.Scan() {
		var found *read
		if json.Unmarshal(in.Bytes(), &found) != nil {
			found = nil
		}
		text, _ := json.Marshal(found)
		out.Write(append(text, '\n'))
	}
}
