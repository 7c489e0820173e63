/* A server whose workers share one listening socket. It prints its port, and then sends each
 * connection the process ID of the worker and a newline. It replaces workers that die, and on
 * SIGHUP all of them.
 *
 * Usage: server MODE WORKERS [many] [unix PATH]
 * MODE: epoll, edge, exclusive, poll, ppoll, select, select-high, pselect, threads (workers are threads of one
 * process). With select-high the socket is not in the first word of an fd_set. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *mode;
static int listener, many;
static volatile sig_atomic_t leaving, reload;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void on_signal(int number)
{
	if (number == SIGHUP)
		reload = 1;
	else
		leaving = 1;
}

/* Serves connections. The ID of a thread stands for its worker. */
static void serve(void)
{
	char text[32];
	int length = sprintf(text, "%d\n", (int)gettid());

	do {
		int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (connection < 0) {
			if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
				fail("accept4");
			return;
		}
		if (write(connection, text, length) != length)
			perror("write");
		close(connection);
	} while (many);
}

static void *work(void *unused)
{
	int set = -1;
	sigset_t blocked, open;

	(void)unused;
	sigemptyset(&open);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	/* The wait unblocks the signal, so that none is lost between the check and the wait. */
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	if (!strcmp(mode, "epoll") || !strcmp(mode, "edge") || !strcmp(mode, "exclusive") || !strcmp(mode, "threads")) {
		struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};

		if (!strcmp(mode, "edge"))
			event.events |= EPOLLET;
		if (!strcmp(mode, "exclusive"))
			event.events |= EPOLLEXCLUSIVE;
		set = epoll_create1(EPOLL_CLOEXEC);
		if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, listener, &event))
			fail("epoll");
	}
	while (!leaving) {
		int found;

		if (set >= 0) {
			struct epoll_event events[8];

			found = epoll_pwait(set, events, 8, -1, &open);
		} else if (!strcmp(mode, "poll")) {
			struct pollfd list[2] = {{.fd = listener, .events = POLLIN}, {.fd = -1}};

			sigprocmask(SIG_UNBLOCK, &blocked, NULL);
			found = leaving ? 0 : poll(list, 2, 1000);
			sigprocmask(SIG_BLOCK, &blocked, NULL);
		} else if (!strcmp(mode, "ppoll")) {
			struct pollfd entry = {.fd = listener, .events = POLLIN};

			found = ppoll(&entry, 1, NULL, &open);
		} else {
			fd_set set;

			FD_ZERO(&set);
			FD_SET(listener, &set);
			if (!strncmp(mode, "select", 6)) {
				struct timeval second = {1, 0};

				sigprocmask(SIG_UNBLOCK, &blocked, NULL);
				found = leaving ? 0 : select(listener + 1, &set, NULL, NULL, &second);
				sigprocmask(SIG_BLOCK, &blocked, NULL);
			} else {
				found = pselect(listener + 1, &set, NULL, NULL, NULL, &open);
			}
		}
		if (found > 0)
			serve();
		else if (found < 0 && errno != EINTR)
			fail("wait");
	}
	return NULL;
}

static pid_t start(void)
{
	pid_t parent = getpid(), child = fork();

	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		signal(SIGHUP, SIG_IGN);
		work(NULL);
		exit(0);
	}
	if (child < 0)
		fail("fork");
	return child;
}

int main(int count, char **arguments)
{
	struct sigaction action = {.sa_handler = on_signal};
	int workers = count > 2 ? atoi(arguments[2]) : 8;
	pid_t processes[64];

	mode = count > 1 ? arguments[1] : "epoll";
	many = count > 3 && !strcmp(arguments[3], "many");
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	if (workers < 1 || workers > 64)
		return 2;
	if (count > 5 && !strcmp(arguments[4], "unix")) {
		struct sockaddr_un address = {.sun_family = AF_UNIX};

		strncpy(address.sun_path, arguments[5], sizeof address.sun_path - 1);
		listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
		if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096))
			fail("bind");
		printf("0\n");
	} else {
		struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
		socklen_t size = sizeof address;

		listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		if (!strcmp(mode, "select-high"))
			listener = fcntl(listener, F_DUPFD, 100);
		if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 4096) ||
		    getsockname(listener, (struct sockaddr *)&address, &size))
			fail("bind");
		printf("%d\n", ntohs(address.sin_port));
	}
	fflush(stdout);
	if (!strcmp(mode, "threads")) {
		pthread_t thread;

		while (workers-- > 0)
			pthread_create(&thread, NULL, work, NULL);
		while (!leaving)
			pause();
		exit(0);
	}
	for (int i = 0; i < workers; i++)
		processes[i] = start();
	while (!leaving) {
		pid_t ended = waitpid(-1, NULL, 0);

		if (reload) {
			reload = 0;
			for (int i = 0; i < workers; i++) {
				pid_t old = processes[i];

				processes[i] = start();
				kill(old, SIGTERM);
			}
		}
		for (int i = 0; ended > 0 && i < workers; i++)
			if (processes[i] == ended)
				processes[i] = start();
	}
	for (int i = 0; i < workers; i++)
		kill(processes[i], SIGTERM);
	while (wait(NULL) > 0)
		;
	return 0;
}
