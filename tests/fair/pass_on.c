/* A worker takes the wakeup for a connection and does not accept it, so another worker must. Prints
 * "ok" for each way in which a worker can fail, or the time that the connection waited if it was
 * too long. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 4, TOO_LONG = 60 };
/* Where only one is left, nobody's turn makes the kernel look at the socket. */
#define WORKERS_OF(call) ((call) == NEIGHBOUR ? 2 : WORKERS)
enum way { KILLED, STOPPED, BUSY, DELETES, PAUSES, CLOSES, FORGETS, WAYS };
static const char *const ways[] = {"killed", "stopped", "busy", "deletes", "pauses", "closes the set", "closes the socket"};
/* TICKS: no wait is long. TRAFFIC: something else comes before a nap ends. NEIGHBOUR: connections to another socket do. */
enum call { EPOLL, EDGE, TICKS, TRAFFIC, NEIGHBOUR, POLL, SELECT, CALLS };
static const char *const calls[] = {"epoll", "edge", "epoll, ticks", "epoll, traffic", "epoll, a neighbour", "poll", "select"};

/* Whether a worker of this round has failed already. */
static atomic_int *failed;
static int listener, neighbour;

static void work(enum call call, enum way way)
{
	int set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = {.events = EPOLLIN | (call == EDGE ? EPOLLET : 0)};

	if (call < POLL)
		epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
	if (call == NEIGHBOUR) {
		struct epoll_event other = {.events = EPOLLIN, .data.u64 = 2};

		epoll_ctl(set, EPOLL_CTL_ADD, neighbour, &other);
	}
	if (call == TRAFFIC) {
		struct itimerspec every = {{0, 5000000}, {0, 5000000}};
		struct epoll_event ticks = {.events = EPOLLIN | EPOLLET, .data.u64 = 1};
		int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);

		timerfd_settime(timer, 0, &every, NULL);
		epoll_ctl(set, EPOLL_CTL_ADD, timer, &ticks);
	}
	for (;;) {
		struct pollfd entry = {.fd = listener, .events = POLLIN};
		fd_set read;
		int connection;

		FD_ZERO(&read);
		FD_SET(listener, &read);
		if ((call == POLL ? poll(&entry, 1, -1) : call == SELECT ? select(listener + 1, &read, NULL, NULL, NULL)
			: epoll_wait(set, &event, 1, call == TICKS ? 10 : -1)) < 1)
			continue;
		if (call == TRAFFIC && event.data.u64 == 1)
			continue;
		if (call == NEIGHBOUR && event.data.u64 == 2) {
			if ((connection = accept4(neighbour, NULL, NULL, SOCK_CLOEXEC)) >= 0)
				close(connection);
			continue;
		}
		if (atomic_fetch_add(failed, 1) == 0) {
			switch (way) {
			case KILLED: raise(SIGKILL); break;
			case STOPPED: raise(SIGSTOP); break;
			case DELETES: epoll_ctl(set, EPOLL_CTL_DEL, listener, NULL); break;
			case PAUSES: event.events = 0; epoll_ctl(set, EPOLL_CTL_MOD, listener, &event); break;
			case CLOSES: close(set); break;
			case FORGETS: close(listener); break;
			default: break;
			}
			sleep(100);
		}
		while ((connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
			if (write(connection, "x", 1) != 1)
				perror("write");
			close(connection);
		}
	}
}

/* Waits until a process sleeps. */
static void await_sleep(pid_t process)
{
	char path[64], text[256], *state;

	sprintf(path, "/proc/%d/stat", process);
	for (int asleep = 0; asleep < 3; usleep(2000)) {
		FILE *file = fopen(path, "r");

		asleep += file && fgets(text, sizeof text, file) && (state = strrchr(text, ')')) && state[2] == 'S';
		fclose(file);
	}
}

static int connect_to(int socket_there)
{
	struct sockaddr_in address;
	socklen_t size = sizeof address;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	getsockname(socket_there, (struct sockaddr *)&address, &size);
	if (connect(fd, (struct sockaddr *)&address, size))
		perror("connect");
	return fd;
}

static int listen_somewhere(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 64))
		perror("listen");
	return fd;
}

static int ask(void)
{
	struct timeval limit = {TOO_LONG, 0};
	int fd = connect_to(listener), count;
	char byte;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	count = recv(fd, &byte, 1, 0);
	close(fd);
	return count == 1;
}

static int round_of(enum call call, enum way way, int warm)
{
	pid_t workers[WORKERS], client = 0;
	struct timespec start, end;
	int answered;

	listener = listen_somewhere();
	neighbour = listen_somewhere();
	atomic_store(failed, warm ? -3 : 0);
	for (int i = 0; i < WORKERS_OF(call); i++) {
		workers[i] = fork();
		if (workers[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			work(call, way);
		}
		await_sleep(workers[i]);
	}
	if (call == NEIGHBOUR && (client = fork()) == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;; usleep(5000))
			close(connect_to(neighbour));
	}
	while (warm-- > 0 && atomic_load(failed) < 0)
		ask();
	usleep(20000);
	clock_gettime(CLOCK_MONOTONIC, &start);
	answered = ask();
	clock_gettime(CLOCK_MONOTONIC, &end);
	fprintf(stderr, "%s, %s: %.1f ms\n", calls[call], ways[way],
		(end.tv_sec - start.tv_sec) * 1e3 + (end.tv_nsec - start.tv_nsec) / 1e6);
	printf("%s, %s: %s\n", calls[call], ways[way], answered ? "ok" : "LOST");
	fflush(stdout);
	for (int i = 0; i < WORKERS_OF(call); i++)
		kill(workers[i], SIGKILL);
	if (client)
		kill(client, SIGKILL);
	while (wait(NULL) > 0)
		;
	close(listener);
	close(neighbour);
	return answered;
}

int main(void)
{
	int all = 1;

	failed = mmap(NULL, sizeof *failed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (enum call call = EPOLL; call < CALLS; call++)
		for (enum way way = KILLED; way < WAYS; way++)
			if (call <= EDGE || way <= BUSY)
				for (int warm = 0; warm < 8; warm += 4)
					all &= round_of(call, way, warm);
	return !all;
}
