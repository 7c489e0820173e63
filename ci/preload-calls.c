/* Makes one call many times and prints the processor time that each takes, in nanoseconds, and the page faults
 * of each child. Usage: preload-calls ROW COUNT [eventfd | listener], the last to have an eventfd or a listening socket
 * open meanwhile. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                         \
	do {                                                                     \
		if (!(condition)) {                                              \
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition);  \
			exit(1);                                                 \
		}                                                                \
	} while (0)

enum { FILL = 4096 };
static int line[2], ready[2], set, counter, listener;
static struct sockaddr_un address = {.sun_family = AF_UNIX};
static socklen_t size = sizeof(sa_family_t);
static long faults;
static char bytes[FILL];

static void reads(long at)
{
	if (at % FILL == 0)
		CHECK(write(line[1], bytes, FILL) == FILL);
	CHECK(read(line[0], bytes, 1) == 1);
}

static void writes(long at)
{
	CHECK(write(line[1], bytes, 1) == 1);
	if (at % FILL == FILL - 1)
		CHECK(read(line[0], bytes, FILL) == FILL);
}

static void polls(int count)
{
	struct pollfd entries[10];
	int at;
	for (at = 0; at < count; at++)
		entries[at] = (struct pollfd){line[0], POLLIN, 0};
	CHECK(poll(entries, (nfds_t)count, 0) == 0);
}

static void polls_one(long at) { (void)at, polls(1); }
static void polls_ten(long at) { (void)at, polls(10); }

static void polls_eventfd(long at)
{
	struct pollfd entries[] = {{counter, POLLIN, 0}, {ready[0], POLLIN, 0}};
	(void)at;
	CHECK(poll(entries, 2, -1) == 1 && entries[1].revents == POLLIN);
}

static void polls_ready(long at)
{
	struct pollfd entry = {ready[0], POLLIN, 0};
	(void)at;
	CHECK(poll(&entry, 1, -1) == 1);
}

static void ppolls_ready(long at)
{
	struct pollfd entry = {ready[0], POLLIN, 0};
	(void)at;
	CHECK(ppoll(&entry, 1, NULL, NULL) == 1);
}

static void selects_ready(long at)
{
	fd_set readable;
	(void)at;
	FD_ZERO(&readable);
	FD_SET(ready[0], &readable);
	CHECK(select(ready[0] + 1, &readable, NULL, NULL, NULL) == 1);
}

static void pselects_ready(long at)
{
	static fd_set readable;
	(void)at;
	FD_ZERO(&readable);
	FD_SET(ready[0], &readable);
	CHECK(pselect(ready[0] + 1, &readable, NULL, NULL, NULL, NULL) == 1);
}

static void accepts_none(long at)
{
	(void)at;
	CHECK(accept4(listener, NULL, NULL, 0) == -1 && errno == EAGAIN);
}

static void accepts(long at)
{
	int client = socket(AF_UNIX, SOCK_STREAM, 0), connection;
	(void)at;
	CHECK(connect(client, (struct sockaddr *)&address, size) == 0);
	CHECK((connection = accept(listener, NULL, NULL)) >= 0);
	CHECK(close(connection) == 0 && close(client) == 0);
}

static void calls_directly(long at)
{
	(void)at;
	CHECK(syscall(SYS_getppid) > 0);
}

static void selects(long at)
{
	struct timeval limit = {0, 0};
	fd_set readable;
	(void)at;
	FD_ZERO(&readable);
	FD_SET(line[0], &readable);
	CHECK(select(line[0] + 1, &readable, NULL, NULL, &limit) == 0);
}

static void add(int fd)
{
	struct epoll_event event = {.events = EPOLLIN};
	CHECK((set = epoll_create1(0)) >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

static void waits_empty(long at)
{
	struct epoll_event events[8];
	if (at == 0)
		add(line[0]);
	CHECK(epoll_wait(set, events, 8, 0) == 0);
}

static void waits_ready(long at)
{
	struct epoll_event events[8];
	if (at == 0)
		add(ready[0]);
	CHECK(epoll_wait(set, events, 8, -1) == 1);
}

static void waits_for_eventfd(long at)
{
	struct epoll_event events[8];
	if (at == 0)
		add(eventfd(1, 0));
	CHECK(epoll_wait(set, events, 8, -1) == 1);
}

static void changes(long at)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = (unsigned long)at};
	if (at == 0)
		add(line[0]);
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, line[0], &event) == 0);
}

static void dups_and_closes(long at)
{
	int copy = dup(line[0]);
	(void)at;
	CHECK(copy >= 0 && close(copy) == 0);
}

static void dups_to(long at)
{
	(void)at;
	CHECK(dup2(line[0], 50) == 50);
}

static void ends(void)
{
	_exit(0);
}

static void executes(void)
{
	execl("/proc/self/exe", "preload-calls", NULL);
	_exit(1);
}

static void forks_a_child(void (*that)(void))
{
	struct rusage used;
	int status;
	pid_t child = fork();
	if (child == 0)
		that();
	CHECK(child > 0 && wait4(child, &status, 0, &used) == child && status == 0);
	faults += used.ru_minflt;
}

static void forks(long at)
{
	(void)at;
	forks_a_child(ends);
}

/* The child executes this program, which ends at once. */
static void forks_and_executes(long at)
{
	(void)at;
	forks_a_child(executes);
}

static const struct {
	const char *name;
	void (*call)(long);
} rows[] = {
	{"read", reads}, {"write", writes}, {"poll-1", polls_one}, {"poll-10", polls_ten},
	{"select", selects}, {"epoll_wait-empty", waits_empty}, {"epoll_wait-ready", waits_ready},
	{"epoll_ctl-mod", changes}, {"dup+close", dups_and_closes}, {"dup2", dups_to},
	{"fork+wait", forks}, {"fork+exec", forks_and_executes}, {"poll-eventfd-socket", polls_eventfd},
	{"poll-ready", polls_ready}, {"ppoll-ready", ppolls_ready}, {"select-ready", selects_ready},
	{"pselect-ready", pselects_ready}, {"epoll_wait-eventfd", waits_for_eventfd}, {"syscall", calls_directly},
	{"accept-empty", accepts_none}, {"connect+accept", accepts},
};

static double used(int whose)
{
	struct rusage used;
	CHECK(getrusage(whose, &used) == 0);
	return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e9 +
		(double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e3;
}

int main(int arguments, char **argument)
{
	size_t row = 0;
	long at, count;
	double before;
	if (arguments == 1)
		return 0;
	CHECK(arguments >= 3);
	while (strcmp(rows[row].name, argument[1]) != 0)
		CHECK(++row < sizeof rows / sizeof *rows);
	count = atol(argument[2]);
	if (strncmp(rows[row].name, "accept", 6) == 0 || rows[row].call == accepts ||
		(arguments > 3 && strcmp(argument[3], "listener") == 0)) {
		CHECK((listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0)) >= 0);
		/* A name that no other socket has: the kernel chooses one. */
		CHECK(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 1) == 0);
		size = sizeof address;
		CHECK(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
	} else if (arguments > 3 || rows[row].call == polls_eventfd)
		CHECK((counter = eventfd(0, EFD_NONBLOCK)) >= 0);
	/* As in a server, the listening socket has a lower number than what it waits for. */
	CHECK(pipe(line) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, ready) == 0);
	CHECK(write(ready[1], "x", 1) == 1);
	/* Names are found, and pages are there. Both are multiples of what a pipe is filled with. */
	for (at = 0; at < (strncmp(rows[row].name, "fork", 4) == 0 ? 1 : FILL); at++)
		rows[row].call(at);
	faults = 0;
	before = used(RUSAGE_SELF) + used(RUSAGE_CHILDREN);
	for (at = FILL; at < FILL + count; at++)
		rows[row].call(at);
	printf("%.2f %.2f\n", (used(RUSAGE_SELF) + used(RUSAGE_CHILDREN) - before) / (double)count,
		(double)faults / (double)count);
	return 0;
}
