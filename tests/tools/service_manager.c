/* Starts a program as a service manager does: with a local socket to listen at, as descriptor 3,
 * and one to tell how it is, whose messages it prints.
 *
 *   service_manager SOCKET PROGRAM ARGUMENT...
 */
#define _DEFAULT_SOURCE /* setenv */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* A socket with a name, of descriptor `fd`. */
static void make_socket(int fd, int type, const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int made = socket(AF_UNIX, type, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    if (made < 0 || bind(made, (const struct sockaddr *)&at, sizeof at) != 0 ||
        dup2(made, fd) != fd || (type == SOCK_STREAM && listen(fd, 16) != 0)) {
        perror(path);
        exit(1);
    }
    if (made != fd)
        close(made);
}

int main(int argc, char **argv)
{
    enum { LISTENER = 3, NOTIFIED = 10 };
    char told[108], text[256];
    if (argc < 3)
        return 2;
    snprintf(told, sizeof told, "%s.notify", argv[1]);
    make_socket(LISTENER, SOCK_STREAM, argv[1]);
    make_socket(NOTIFIED, SOCK_DGRAM, told);
    pid_t child = fork();
    if (child == 0) {
        snprintf(text, sizeof text, "%ld", (long)getpid());
        setenv("LISTEN_PID", text, 1);
        setenv("LISTEN_FDS", "1", 1);
        setenv("NOTIFY_SOCKET", told, 1);
        close(NOTIFIED);
        execv(argv[2], argv + 2);
        _exit(127);
    }
    close(LISTENER);
    for (;;) {
        ssize_t n = recv(NOTIFIED, text, sizeof text - 1, 0);
        if (n <= 0)
            return 1;
        text[n] = 0;
        puts(text);
        fflush(stdout);
        if (strcmp(text, "STOPPING=1") == 0)
            break;
    }
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
