/* Clients of an MCP server over HTTP, each on its connection, each sending its next call when the last is answered.

       load URL handshake|stateless CONNECTIONS [--tool NAME] [--servers N] [--size BYTES] [--list TOOLS]
            [--idle STREAMS]

   A call is of `--tool` (`echo`), which is to give back a text that no other call has and so many bytes more. A # in
   the name is the number of a server, 1 to `--servers`, one after the other. With `--list` a call is `tools/list`,
   which must have so many entries. Every answer is compared with what it must be. Clients
   with a handshake have a session each. `--idle` opens so many more sessions, each with a stream of its own that stays
   open (`GET`, or `subscriptions/listen`).

   It prints `ready` and then, for each line `SECONDS` of its standard input, calls for that long and prints one line of
   JSON: calls, errors, seconds until the last answer, and the latencies of the median and of the slowest hundredth in
   microseconds. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "message.h"

#define PATIENCE 60.0 /* seconds for one answer */
#define SHOWN 5       /* errors that are told in words */
#define IO "io.modelcontextprotocol/"
#define META "\"_meta\":{\"" IO "protocolVersion\":\"2026-07-28\",\"" IO "clientCapabilities\":{},\"" IO \
             "clientInfo\":{\"name\":\"load\",\"version\":\"1\"}}"
#define STATELESS_HEADERS "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: "

struct client {
    int fd;
    long id;         /* of the call under way; 0 if there is none */
    double began;
    char session[200];
    struct buffer in, out;
    size_t sent, head, at; /* bytes sent; length of the head that was read; begin of the next chunk */
    int chunked, retried;
    struct buffer body;
};

static struct sockaddr_in address;
static char host[100], path[200];
static const char *tool = "echo";
static int stateless, poller;
static long servers = 1, size, listed, errors, calls, next_id;
static double *latencies;
static size_t latency_room;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void fail(const char *what, struct span about) {
    if (errors++ < SHOWN)
        fprintf(stderr, "%s: %.*s\n", what, (int)(about.length < 300 ? about.length : 300), about.at ? about.at : "");
}

static void connect_client(struct client *client) {
    int on = 1;
    if (client->fd >= 0)
        close(client->fd);
    client->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(client->fd, (struct sockaddr *)&address, sizeof address) < 0)
        die("connect");
    setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    client->in.length = client->head = client->sent = 0;
    struct epoll_event event = {EPOLLIN, {.ptr = client}};
    epoll_ctl(poller, EPOLL_CTL_ADD, client->fd, &event);
}

/* Write a request into `out`: its head, and a body that the caller made. */
static void put_request(struct client *client, const char *verb, const char *headers, const char *body) {
    char head[1000];
    client->out.length = client->sent = 0;
    snprintf(head, sizeof head,
             "%s %s HTTP/1.1\r\nHost: %s\r\nAccept: application/json, text/event-stream\r\n%s%s%s%s", verb, path, host,
             headers, client->session[0] ? "Mcp-Session-Id: " : "", client->session, client->session[0] ? "\r\n" : "");
    append_text(&client->out, head);
    if (body != NULL) {
        snprintf(head, sizeof head, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
        append_text(&client->out, head);
    }
    append_text(&client->out, "\r\n");
    if (body != NULL)
        append_text(&client->out, body);
}

/* Send what is left of `out`; most requests go in one piece. */
static void send_request(struct client *client) {
    while (client->sent < client->out.length) {
        ssize_t sent = send(client->fd, client->out.data + client->sent, client->out.length - client->sent, MSG_NOSIGNAL);
        if (sent < 0)
            return; /* what reads next finds that the connection has ended */
        client->sent += sent;
    }
}

static void begin_call(struct client *client, double time) {
    char body[1000], headers[300], name[100];
    client->id = ++next_id;
    client->began = time;
    const char *mark = strchrnul(tool, '#');
    if (*mark)
        snprintf(name, sizeof name, "%.*s%ld%s", (int)(mark - tool), tool, 1 + client->id % servers, mark + 1);
    else
        snprintf(name, sizeof name, "%s", tool);
    if (listed)
        snprintf(body, sizeof body, "{\"jsonrpc\":\"2.0\",\"id\":%ld,\"method\":\"tools/list\",\"params\":{%s}}",
                 client->id, stateless ? META : "");
    else
        snprintf(body, sizeof body,
                 "{\"jsonrpc\":\"2.0\",\"id\":%ld,\"method\":\"tools/call\",\"params\":{%s\"name\":\"%s\","
                 "\"arguments\":{\"text\":\"call %ld\",\"size\":%ld}}}",
                 client->id, stateless ? META "," : "", name, client->id, size);
    if (!stateless)
        snprintf(headers, sizeof headers, "MCP-Protocol-Version: 2025-06-18\r\n");
    else if (listed)
        snprintf(headers, sizeof headers, STATELESS_HEADERS "tools/list\r\n");
    else
        snprintf(headers, sizeof headers, STATELESS_HEADERS "tools/call\r\nMcp-Name: %s\r\n", name);
    put_request(client, "POST", headers, body);
    send_request(client);
}

/* Read on from the socket; whether the connection lives. */
static int receive(struct client *client, int flags) {
    reserve(&client->in, 1 << 16);
    ssize_t got = recv(client->fd, client->in.data + client->in.length, client->in.room - client->in.length, flags);
    if (got <= 0)
        return got < 0 && errno == EAGAIN;
    client->in.length += got;
    return 1;
}

/* Take one whole response out of `in`: its status, and its body in `body`. Returns 0 while it is not all there. */
static int take_response(struct client *client) {
    struct buffer *in = &client->in;
    if (client->head == 0) {
        if ((client->head = head_length(in->data, in->length)) == 0)
            return 0;
        client->chunked = is(header((struct span){in->data, client->head}, "transfer-encoding"), "chunked");
        client->at = client->head;
        client->body.length = 0;
    }
    struct span head = {in->data, client->head};
    if (!client->chunked) {
        size_t length = number(header(head, "content-length"), 0);
        if (in->length < client->head + length)
            return 0;
        append(&client->body, in->data + client->head, length);
        client->at = client->head + length;
    } else {
        for (;;) {
            char *begin = in->data + client->at, *line = memchr(begin, '\n', in->length - client->at);
            if (line == NULL)
                return 0;
            size_t length = strtoul(begin, NULL, 16), after = line + 1 - in->data + length + 2;
            if (in->length < after)
                return 0;
            append(&client->body, line + 1, length);
            client->at = after;
            if (length == 0)
                break;
        }
    }
    return atoi(in->data + sizeof "HTTP/1.1");
}

/* Forget the response that was taken. */
static void drop_response(struct client *client) {
    drop_front(&client->in, client->at);
    client->head = client->at = 0;
}

/* The message in a body: the body, or the last event of a stream. */
static struct span message_of(struct client *client) {
    struct span body = {client->body.data, client->body.length}, last = NOTHING;
    struct span kind = header((struct span){client->in.data, client->head}, "content-type");
    if (kind.length < 17 || strncasecmp(kind.at, "text/event-stream", 17) != 0)
        return body;
    const char *end = body.at + body.length;
    for (const char *line = body.at; line != NULL && line < end;) {
        const char *stop = memchr(line, '\n', end - line);
        if (end - line > 5 && memcmp(line, "data:", 5) == 0)
            last = (struct span){line + 5, (stop == NULL ? end : stop) - line - 5};
        line = stop == NULL ? NULL : stop + 1;
    }
    return last;
}

/* Whether a message is the right answer to the call. */
static int is_right(struct client *client, struct span message) {
    struct span result = member(message, "result");
    long count;
    if (number(member(message, "id"), 0) != client->id || result.at == NULL)
        return 0;
    if (listed) {
        first_item(member(result, "tools"), &count);
        return count == listed;
    }
    struct span text = inside(member(first_item(member(result, "content"), &count), "text"));
    char wanted[100];
    size_t length = snprintf(wanted, sizeof wanted, "call %ld", client->id);
    if (text.length != length + size || memcmp(text.at, wanted, length) != 0)
        return 0;
    for (const char *at = text.at + length; at < text.at + text.length; at++)
        if (*at != 'x')
            return 0;
    return 1;
}

/* Sessions: what is done before the first call, one exchange after another. */

static void exchange(struct client *client, const char *headers, const char *body, int wanted) {
    put_request(client, "POST", headers, body);
    send_request(client);
    int status;
    while ((status = take_response(client)) == 0) {
        struct pollfd readable = {client->fd, POLLIN, 0};
        if (poll(&readable, 1, PATIENCE * 1000) <= 0 || !receive(client, 0)) {
            fprintf(stderr, "no answer to %s\n", body);
            exit(2);
        }
    }
    if (status != wanted) {
        fprintf(stderr, "status %d to %s: %.*s\n", status, body, (int)client->body.length, client->body.data);
        exit(2);
    }
    struct span session = header((struct span){client->in.data, client->head}, "mcp-session-id");
    if (session.at != NULL && session.length < sizeof client->session)
        memcpy(client->session, session.at, session.length);
    drop_response(client);
}

static void open_client(struct client *client) {
    client->fd = -1;
    connect_client(client);
    if (stateless)
        return;
    exchange(client, "",
             "{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"2025-06-18\","
             "\"capabilities\":{},\"clientInfo\":{\"name\":\"load\",\"version\":\"1\"}}}",
             200);
    exchange(client, "MCP-Protocol-Version: 2025-06-18\r\n",
             "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}", 202);
}

/* A stream that stays open. */
static void open_idle(struct client *client) {
    open_client(client);
    if (stateless)
        put_request(client, "POST", STATELESS_HEADERS "subscriptions/listen\r\n",
                    "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"subscriptions/listen\",\"params\":{" META
                    ",\"notifications\":{\"toolsListChanged\":true}}}");
    else
        put_request(client, "GET", "MCP-Protocol-Version: 2025-06-18\r\n", NULL);
    send_request(client);
    epoll_ctl(poller, EPOLL_CTL_DEL, client->fd, NULL); /* it may say what it likes, nobody listens */
    while (head_length(client->in.data, client->in.length) == 0)
        if (!receive(client, 0))
            break;
    if (client->in.length < 12 || memcmp(client->in.data + sizeof "HTTP/1.1", "200", 3) != 0) {
        fprintf(stderr, "no stream: %.*s\n", (int)client->in.length, client->in.data);
        exit(2);
    }
}

/* The calls */

static void end_call(struct client *client, double time) {
    if ((size_t)calls == latency_room) {
        latency_room = latency_room ? latency_room * 2 : 1 << 16;
        latencies = realloc(latencies, latency_room * sizeof *latencies);
    }
    latencies[calls++] = time - client->began;
    client->id = 0;
}

/* A connection ended. One that stood unused may have been closed at the moment of the request: it gets a second. */
static void lost(struct client *client) {
    if (client->id != 0 && (client->in.length > 0 || client->retried)) {
        fail("the connection ended in mid-answer", (struct span){client->in.data, client->in.length});
        client->id = 0;
    }
    connect_client(client);
    if (client->id != 0) {
        client->retried = 1;
        client->sent = 0;
        send_request(client);
    }
}

static int by_value(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static double quantile(double part) {
    return calls ? latencies[(size_t)(part * (calls - 1))] * 1e6 : 0;
}

static void run(struct client *clients, long count, double seconds) {
    double began = now(), deadline = began + seconds, time = began;
    struct epoll_event events[256];
    long busy = count;
    calls = errors = 0;
    for (long index = 0; index < count; index++) {
        struct client *client = &clients[index];
        char byte;
        if (recv(client->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
            connect_client(client);
        client->retried = 0;
        begin_call(client, now());
    }
    while (busy > 0) {
        int ready = epoll_wait(poller, events, 256, PATIENCE * 1000);
        if (ready <= 0) {
            for (; busy > 0; busy--)
                fail("no answer", NOTHING);
            break;
        }
        for (int index = 0; index < ready; index++) {
            struct client *client = events[index].data.ptr;
            long id = client->id;
            time = now();
            if (!receive(client, MSG_DONTWAIT))
                lost(client);
            int status = client->id ? take_response(client) : 0;
            if (status) {
                struct span message = message_of(client);
                if (status == 200 && is_right(client, message))
                    end_call(client, time);
                else
                    fail("a wrong answer", message);
                client->id = client->retried = 0;
                drop_response(client);
            }
            if (id != 0 && client->id == 0) {
                if (time < deadline)
                    begin_call(client, time);
                else
                    busy--;
            }
        }
    }
    double took = now() - began;
    qsort(latencies, calls, sizeof *latencies, by_value);
    printf("{\"calls\":%ld,\"errors\":%ld,\"seconds\":%.6f,\"p50\":%.1f,\"p99\":%.1f}\n", calls, errors, took,
           quantile(0.5), quantile(0.99));
    fflush(stdout);
}

int main(int argument_count, char **arguments) {
    int port;
    if (argument_count < 4 || sscanf(arguments[1], "http://127.0.0.1:%d%199s", &port, path) != 2) {
        fprintf(stderr, "usage: load http://127.0.0.1:PORT/PATH handshake|stateless CONNECTIONS [OPTION VALUE]...\n");
        return 2;
    }
    snprintf(host, sizeof host, "127.0.0.1:%d", port);
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    stateless = strcmp(arguments[2], "stateless") == 0;
    long count = atol(arguments[3]), idle = 0;
    for (int index = 4; index + 1 < argument_count; index += 2) {
        if (strcmp(arguments[index], "--tool") == 0)
            tool = arguments[index + 1];
        else if (strcmp(arguments[index], "--servers") == 0)
            servers = atol(arguments[index + 1]);
        else if (strcmp(arguments[index], "--size") == 0)
            size = atol(arguments[index + 1]);
        else if (strcmp(arguments[index], "--list") == 0)
            listed = atol(arguments[index + 1]);
        else if (strcmp(arguments[index], "--idle") == 0)
            idle = atol(arguments[index + 1]);
    }
    poller = epoll_create1(EPOLL_CLOEXEC);
    struct client *clients = calloc(count + idle, sizeof *clients);
    for (long index = 0; index < count; index++)
        open_client(&clients[index]);
    for (long index = count; index < count + idle; index++)
        open_idle(&clients[index]);
    printf("ready\n");
    fflush(stdout);
    char line[100];
    while (fgets(line, sizeof line, stdin) != NULL)
        run(clients, count, atof(line));
    return 0;
}
