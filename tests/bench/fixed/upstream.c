/* An MCP server that costs next to nothing, for measuring what stands before it.

       upstream handshake|stateless http|stdio [TOOLS]

   It speaks 2025-06-18 and its like with sessions, or 2026-07-28 without. Over HTTP it listens at a free port of
   127.0.0.1 and prints its URL. It offers `echo`, which gives back its argument `text` and as many bytes more as its
   argument `size` says, and tools that make up the number. */

#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "message.h"

#define CAPABILITIES "\"capabilities\":{\"tools\":{}}"
#define INFO "{\"name\":\"bench\",\"version\":\"1\"}"
#define COMPLETE "\"resultType\":\"complete\","
#define FRESH ",\"ttlMs\":0,\"cacheScope\":\"private\""

static int stateless;
static struct buffer tools;

static void make_tools(long count) {
    append_text(&tools, "\"tools\":[{\"name\":\"echo\",\"description\":\"Gives back its text.\",\"inputSchema\":{"
                        "\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\"},\"size\":{\"type\":"
                        "\"integer\"}},\"required\":[\"text\"]}}");
    for (long number = 1; number < count; number++) {
        char tool[600];
        snprintf(tool, sizeof tool,
                 ",{\"name\":\"tool_%03ld\",\"description\":\"Looks for the records that match a query, in the "
                 "order in which they were changed.\",\"inputSchema\":{\"type\":\"object\",\"properties\":{\"query\":"
                 "{\"type\":\"string\",\"description\":\"Words that must all be there.\"},\"limit\":{\"type\":"
                 "\"integer\",\"minimum\":1,\"maximum\":100,\"default\":20}},\"required\":[\"query\"]}}",
                 number);
        append_text(&tools, tool);
    }
    append_text(&tools, "]");
}

/* Append the answer to a message. Returns the HTTP status; 202 without an answer is for a notification. */
static int answer(struct span message, struct buffer *out) {
    struct span id = member(message, "id"), method = inside(member(message, "method"));
    struct span params = member(message, "params");
    if (id.at == NULL || method.at == NULL)
        return 202;
    append_text(out, "{\"jsonrpc\":\"2.0\",\"id\":");
    append_span(out, id);
    const char *kind = stateless ? COMPLETE : "";
    if (is(method, "tools/call")) {
        struct span arguments = member(params, "arguments");
        append_text(out, ",\"result\":{");
        append_text(out, kind);
        append_text(out, "\"content\":[{\"type\":\"text\",\"text\":\"");
        append_span(out, inside(member(arguments, "text")));
        append_fill(out, number(member(arguments, "size"), 0));
        append_text(out, "\"}]}}");
    } else if (is(method, "tools/list")) {
        append_text(out, ",\"result\":{");
        append_text(out, kind);
        append(out, tools.data, tools.length);
        append_text(out, stateless ? FRESH "}}" : "}}");
    } else if (is(method, "ping") && !stateless) {
        append_text(out, ",\"result\":{}}");
    } else if (is(method, "initialize") && !stateless) {
        append_text(out, ",\"result\":{\"protocolVersion\":");
        append_span(out, member(params, "protocolVersion"));
        append_text(out, "," CAPABILITIES ",\"serverInfo\":" INFO "}}");
    } else if (is(method, "server/discover") && stateless) {
        append_text(out, ",\"result\":{" COMPLETE "\"supportedVersions\":[\"2026-07-28\"]," CAPABILITIES FRESH
                         ",\"_meta\":{\"io.modelcontextprotocol/serverInfo\":" INFO "}}}");
    } else {
        append_text(out, ",\"error\":{\"code\":-32601,\"message\":\"Method not found\"}}");
        return stateless ? 404 : 200;
    }
    return 200;
}

/* Over standard input and output */

static void write_all(const char *data, size_t length) {
    while (length > 0) {
        ssize_t wrote = write(STDOUT_FILENO, data, length);
        if (wrote < 0)
            exit(0);
        data += wrote;
        length -= wrote;
    }
}

static void serve_stdio(void) {
    struct buffer in = {0}, out = {0};
    size_t scanned = 0;
    for (;;) {
        reserve(&in, 1 << 16);
        ssize_t got = read(STDIN_FILENO, in.data + in.length, in.room - in.length);
        if (got <= 0)
            exit(0);
        in.length += got;
        size_t begin = 0;
        char *end;
        while ((end = memchr(in.data + scanned, '\n', in.length - scanned)) != NULL) {
            if (answer((struct span){in.data + begin, end - in.data - begin}, &out) != 202)
                append_text(&out, "\n");
            begin = scanned = end + 1 - in.data;
        }
        drop_front(&in, begin);
        scanned = in.length;
        write_all(out.data, out.length);
        out.length = 0;
    }
}

/* Over HTTP */

struct connection {
    int fd, waits;
    struct buffer in, out;
    size_t sent;
};

static void close_connection(struct connection *connection) {
    close(connection->fd);
    free(connection->in.data);
    free(connection->out.data);
    free(connection);
}

/* Answer one request, if a whole one is there. */
static int take_request(struct connection *connection) {
    static struct buffer body;
    struct buffer *in = &connection->in;
    size_t head = head_length(in->data, in->length);
    if (head == 0)
        return 0;
    struct span lines = {in->data, head};
    size_t length = number(header(lines, "content-length"), 0);
    if (in->length < head + length)
        return 0;
    int status = 405;
    body.length = 0;
    if (memcmp(in->data, "POST ", 5) == 0)
        status = answer((struct span){in->data + head, length}, &body);
    else if (memcmp(in->data, "DELETE ", 7) == 0)
        status = 200;
    char text[300];
    snprintf(text, sizeof text, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s\r\n",
             status, status < 300 ? "OK" : "Refused", body.length,
             stateless ? "" : "Mcp-Session-Id: 6f1c0a52-bench\r\n");
    append_text(&connection->out, text);
    append(&connection->out, body.data, body.length);
    drop_front(in, head + length);
    return 1;
}

/* Send what is there; whether the connection lives. */
static int flush(int poll, struct connection *connection) {
    struct buffer *out = &connection->out;
    while (connection->sent < out->length) {
        ssize_t sent = send(connection->fd, out->data + connection->sent, out->length - connection->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            return 0;
        if (sent < 0)
            break;
        connection->sent += sent;
    }
    int waits = connection->sent < out->length;
    if (!waits)
        out->length = connection->sent = 0;
    if (waits != connection->waits) {
        struct epoll_event event = {EPOLLIN | (waits ? EPOLLOUT : 0), {.ptr = connection}};
        epoll_ctl(poll, EPOLL_CTL_MOD, connection->fd, &event);
        connection->waits = waits;
    }
    return 1;
}

static int receive(struct connection *connection) {
    reserve(&connection->in, 1 << 14);
    ssize_t got = recv(connection->fd, connection->in.data + connection->in.length,
                       connection->in.room - connection->in.length, 0);
    if (got <= 0)
        return got < 0 && errno == EAGAIN;
    connection->in.length += got;
    return 1;
}

static void serve_http(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), poll = epoll_create1(EPOLL_CLOEXEC);
    if (bind(listener, (struct sockaddr *)&address, size) < 0 || listen(listener, 4096) < 0)
        die("listen");
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("http://127.0.0.1:%d/mcp\n", ntohs(address.sin_port));
    fflush(stdout);
    struct epoll_event event = {EPOLLIN, {.ptr = NULL}}, events[256];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int count = epoll_wait(poll, events, 256, -1);
        for (int index = 0; index < count; index++) {
            struct connection *connection = events[index].data.ptr;
            if (connection == NULL) {
                int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), on = 1;
                if (fd < 0)
                    continue;
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                connection = calloc(1, sizeof *connection);
                connection->fd = fd;
                event = (struct epoll_event){EPOLLIN, {.ptr = connection}};
                epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
                continue;
            }
            if ((events[index].events & ~EPOLLOUT) && !receive(connection)) {
                close_connection(connection);
                continue;
            }
            while (take_request(connection))
                ;
            if (!flush(poll, connection))
                close_connection(connection);
        }
    }
}

int main(int count, char **arguments) {
    if (count < 3) {
        fprintf(stderr, "usage: upstream handshake|stateless http|stdio [TOOLS]\n");
        return 2;
    }
    stateless = strcmp(arguments[1], "stateless") == 0;
    make_tools(count > 3 ? atol(arguments[3]) : 1);
    if (strcmp(arguments[2], "stdio") == 0)
        serve_stdio();
    serve_http();
}
