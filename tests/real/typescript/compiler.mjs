// The compilers of schemas in the official TypeScript SDKs 1.x and 2.x:
//
//     node compiler.mjs FILE
//
// FILE has a list of schemas. It prints a line of JSON for each: why 1.x does not compile it, and why 2.x does not, or
// null. Schemas of one list may have equal names, so each has compilers of its own.

import { readFileSync } from "node:fs";
import { AjvJsonSchemaValidator as One } from "@modelcontextprotocol/sdk/validation/ajv";
import { AjvJsonSchemaValidator as Two } from "@modelcontextprotocol/client/validators/ajv";

console.warn = console.error = () => {}; // formats that are not known
for (const schema of JSON.parse(readFileSync(process.argv[2], "utf8"))) {
  const refused = [new One(), new Two()].map((compiler) => {
    try {
      compiler.getValidator(schema);
      return null;
    } catch (error) {
      return String(error.message);
    }
  });
  console.log(JSON.stringify(refused));
}
