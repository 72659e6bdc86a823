/* The load generator of fixed/load.c, with the same arguments, for a fleet of two processes at one port of 127.0.0.1 and
   127.0.0.2 (fleet.py): its sessions are opened at the second, and its calls go to the first. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>

#define MOST_DESCRIPTORS 4096

static int is_open; /* whether the handshakes are over */

static int connect_there(int fd, const struct sockaddr *first, socklen_t length) {
    struct sockaddr_in there = *(const struct sockaddr_in *)first;
    if (!is_open)
        there.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    return connect(fd, (struct sockaddr *)&there, length);
}

/* Before the first round: the end of each connection, after which it is made again, to the first process. */
static char *next_line(char *line, int size, FILE *file) {
    if (!is_open)
        for (int fd = 3; fd < MOST_DESCRIPTORS; fd++)
            shutdown(fd, SHUT_RDWR);
    is_open = 1;
    return fgets(line, size, file);
}

#define connect connect_there
#define fgets next_line
#include "fixed/load.c"
