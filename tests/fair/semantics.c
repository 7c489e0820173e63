/* Calls of epoll, poll and select on a listening socket. Prints a line for each check: the output without the library
 * is the expected one. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_storage address;
static socklen_t size;

static int listen_at(int family)
{
	int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	memset(&address, 0, sizeof address);
	address.ss_family = family;
	size = family == AF_UNIX ? sizeof(sa_family_t) : family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	if (family == AF_INET)
		((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else if (family == AF_INET6)
		((struct sockaddr_in6 *)&address)->sin6_addr = in6addr_loopback;
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) || listen(fd, 64)) {
		perror("listen");
		exit(77);
	}
	size = sizeof address;
	getsockname(fd, (struct sockaddr *)&address, &size);
	return fd;
}

static int connect_one(void)
{
	int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (connect(fd, (struct sockaddr *)&address, size)) {
		perror("connect");
		exit(1);
	}
	return fd;
}

static void say(const char *what, long result)
{
	if (result == -1)
		printf("%s: %s\n", what, strerrorname_np(errno));
	else
		printf("%s: %ld\n", what, result);
	fflush(stdout);
}

static int control(int set, int operation, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = {.events = events, .data.u64 = data};

	return epoll_ctl(set, operation, fd, &event);
}

/* Prints the events of a wait: mask and data. */
static void wait_in(const char *what, int set, int timeout)
{
	struct epoll_event events[4];
	int count = epoll_wait(set, events, 4, timeout);

	printf("%s:", what);
	if (count < 0)
		printf(" %s", strerrorname_np(errno));
	else if (count == 0)
		printf(" nothing");
	for (int i = 0; i < count; i++)
		printf(" %x/%llx", events[i].events, (unsigned long long)events[i].data.u64);
	printf("\n");
	fflush(stdout);
}

static void accept_one(int fd)
{
	int connection = accept4(fd, NULL, NULL, SOCK_CLOEXEC);

	say("accept", connection < 0 ? -1 : 0);
	if (connection >= 0)
		close(connection);
}

/* An invalid address. Volatile, so that the compiler does not warn. */
static struct epoll_event *volatile nowhere = (struct epoll_event *)16;

static long since(const struct timespec *start)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - start->tv_sec) * 1000 + (now.tv_nsec - start->tv_nsec) / 1000000;
}

static void nothing(int number)
{
	(void)number;
}

/* Makes the library change the registration, which it does in a wait that is about to sleep. */
static void settle(int set)
{
	struct epoll_event event = {0};
	int count = epoll_wait(set, &event, 1, 10);

	if (count != 0)
		printf("not idle: %d, %s, %x/%llx\n", count, count < 0 ? strerrorname_np(errno) : "no error", event.events,
			(unsigned long long)event.data.u64);
}

static void changes(int family)
{
	int fd = listen_at(family), set = epoll_create1(EPOLL_CLOEXEC), client;

	printf("family %d\n", family);
	say("add", control(set, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
	say("add again", control(set, EPOLL_CTL_ADD, fd, EPOLLIN, 2));
	settle(set);
	say("add after a wait", control(set, EPOLL_CTL_ADD, fd, EPOLLIN, 2));
	client = connect_one();
	wait_in("connection", set, -1);
	wait_in("still there", set, -1);
	say("modify", control(set, EPOLL_CTL_MOD, fd, EPOLLIN, 3));
	wait_in("new data", set, 1000);
	say("pause", control(set, EPOLL_CTL_MOD, fd, 0, 4));
	wait_in("paused", set, 30);
	say("resume", control(set, EPOLL_CTL_MOD, fd, EPOLLIN, 5));
	wait_in("resumed", set, 1000);
	accept_one(fd);
	accept_one(fd);
	wait_in("accepted", set, 30);
	say("modify", control(set, EPOLL_CTL_MOD, fd, EPOLLIN, 6));
	say("modify exclusively", control(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLEXCLUSIVE, 6));
	close(client);
	client = connect_one();
	wait_in("next", set, -1);
	say("delete", control(set, EPOLL_CTL_DEL, fd, 0, 0));
	wait_in("deleted", set, 30);
	say("delete again", control(set, EPOLL_CTL_DEL, fd, 0, 0));
	say("modify", control(set, EPOLL_CTL_MOD, fd, EPOLLIN, 6));
	say("add", control(set, EPOLL_CTL_ADD, fd, EPOLLIN, 7));
	wait_in("added", set, -1);
	accept_one(fd);
	close(client);
	settle(set);
	say("no memory to modify", epoll_ctl(set, EPOLL_CTL_MOD, fd, nowhere));
	say("none to add", epoll_ctl(set, EPOLL_CTL_ADD, fd, NULL));
	say("no such operation", control(set, 9, fd, EPOLLIN, 1));
	say("room for none", epoll_wait(set, (struct epoll_event *)&client, 0, 10));
	client = connect_one();
	say("nowhere to put it", epoll_wait(set, nowhere, 1, 1000));
	accept_one(fd);
	close(client);
	close(set);
	close(fd);
}

static void edge(void)
{
	int fd = listen_at(AF_INET), set = epoll_create1(EPOLL_CLOEXEC), first, second;

	printf("edge-triggered\n");
	say("add", control(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 1));
	settle(set);
	first = connect_one();
	wait_in("first", set, -1);
	wait_in("again", set, 1300);
	second = connect_one();
	wait_in("second", set, -1);
	wait_in("again", set, 100);
	say("modify", control(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 2));
	wait_in("modified", set, 1000);
	accept_one(fd);
	accept_one(fd);
	accept_one(fd);
	wait_in("drained", set, 100);
	close(first);
	close(second);
	first = connect_one();
	wait_in("third", set, -1);
	accept_one(fd);
	close(first);
	close(set);
	close(fd);
}

static void oneshot(void)
{
	int fd = listen_at(AF_INET), set = epoll_create1(EPOLL_CLOEXEC), client;

	printf("one-shot\n");
	say("add", control(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT, 1));
	settle(set);
	client = connect_one();
	wait_in("once", set, -1);
	wait_in("again", set, 30);
	say("modify", control(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 2));
	wait_in("modified", set, 1000);
	say("modify", control(set, EPOLL_CTL_MOD, fd, EPOLLIN, 3));
	wait_in("modified", set, 1000);
	accept_one(fd);
	close(client);
	settle(set);
	say("modify", control(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 4));
	client = connect_one();
	wait_in("once", set, -1);
	wait_in("again", set, 30);
	close(client);
	close(set);
	close(fd);
}

static void hang_up(void)
{
	uint32_t masks[] = {EPOLLIN, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLRDHUP | EPOLLET, EPOLLIN | EPOLLRDNORM | EPOLLPRI};

	printf("hang-up\n");
	for (int i = 0; i < 4; i++) {
		int fd = listen_at(AF_INET), set = epoll_create1(EPOLL_CLOEXEC), client;

		say("add", control(set, EPOLL_CTL_ADD, fd, masks[i], 1));
		settle(set);
		client = connect_one();
		wait_in("connection", set, -1);
		accept_one(fd);
		settle(set);
		shutdown(fd, SHUT_RDWR);
		wait_in("shut down", set, -1);
		close(client);
		close(set);
		close(fd);
	}
}

static void exclusive(void)
{
	int fd = listen_at(AF_INET), set = epoll_create1(EPOLL_CLOEXEC), client;

	printf("exclusive\n");
	say("add", control(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE, 1));
	say("with what is refused", control(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 1));
	settle(set);
	client = connect_one();
	wait_in("connection", set, -1);
	accept_one(fd);
	settle(set);
	say("modify", control(set, EPOLL_CTL_MOD, fd, EPOLLIN, 2));
	say("delete", control(set, EPOLL_CTL_DEL, fd, 0, 0));
	say("delete again", control(set, EPOLL_CTL_DEL, fd, 0, 0));
	close(client);
	close(set);
	close(fd);
}

static void several_sets(void)
{
	int fd = listen_at(AF_INET), sets[3], client;

	printf("several sets\n");
	for (int i = 0; i < 3; i++) {
		sets[i] = epoll_create1(EPOLL_CLOEXEC);
		say("add", control(sets[i], EPOLL_CTL_ADD, fd, EPOLLIN, i));
		settle(sets[i]);
	}
	client = connect_one();
	for (int i = 0; i < 3; i++)
		wait_in("connection", sets[i], 2000);
	accept_one(fd);
	for (int i = 0; i < 3; i++) {
		wait_in("accepted", sets[i], 10);
		close(sets[i]);
	}
	close(client);
	close(fd);
}

static void nested(int is_waited_for)
{
	int fd = listen_at(AF_INET), inner = epoll_create1(EPOLL_CLOEXEC), outer = epoll_create1(EPOLL_CLOEXEC), client;
	struct pollfd entry = {.fd = inner, .events = POLLIN};

	printf("nested\n");
	if (!is_waited_for)
		say("add inner", control(outer, EPOLL_CTL_ADD, inner, EPOLLIN, 1));
	say("add", control(inner, EPOLL_CTL_ADD, fd, EPOLLIN, 2));
	if (is_waited_for) {
		settle(inner);
		say("add inner exclusively", control(outer, EPOLL_CTL_ADD, inner, EPOLLIN | EPOLLEXCLUSIVE, 1));
		say("add inner", control(outer, EPOLL_CTL_ADD, inner, EPOLLIN, 1));
	}
	settle(outer);
	client = connect_one();
	wait_in("outer", outer, -1);
	say("poll", poll(&entry, 1, -1));
	wait_in("inner", inner, -1);
	accept_one(fd);
	close(client);
	settle(outer);
	say("modify", control(inner, EPOLL_CTL_MOD, fd, EPOLLIN, 3));
	settle(inner);
	client = connect_one();
	wait_in("outer", outer, -1);
	wait_in("inner", inner, -1);
	accept_one(fd);
	close(client);
	close(inner);
	close(outer);
	close(fd);
}

static void fds(void)
{
	int fd = listen_at(AF_INET), set = epoll_create1(EPOLL_CLOEXEC), copy, client, pipes[2];

	printf("fds\n");
	copy = dup(fd);
	say("add", control(set, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
	settle(set);
	close(fd);
	client = connect_one();
	wait_in("closed, and open as another", set, -1);
	accept_one(copy);
	say("delete", control(set, EPOLL_CTL_DEL, fd, 0, 0));
	settle(set);
	say("the fd", pipe2(pipes, O_CLOEXEC) == 0 && pipes[0] == fd);
	say("add the pipe", control(set, EPOLL_CTL_ADD, pipes[0], EPOLLIN, 2));
	settle(set);
	say("write", write(pipes[1], "x", 1));
	wait_in("pipe", set, -1);
	wait_in("pipe", set, -1);
	close(client);
	close(copy);
	close(pipes[0]);
	close(pipes[1]);
	close(set);

	/* The same with an fd that gets another file. */
	fd = listen_at(AF_INET);
	set = epoll_create1(EPOLL_CLOEXEC);
	say("add", control(set, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
	settle(set);
	pipe2(pipes, O_CLOEXEC);
	copy = dup(fd);
	say("replace", dup2(pipes[0], fd) == fd);
	say("add the pipe", control(set, EPOLL_CTL_ADD, fd, EPOLLIN, 2));
	settle(set);
	client = connect_one();
	wait_in("the other fd", set, -1);
	say("write", write(pipes[1], "x", 1));
	wait_in("pipe, too", set, -1);
	wait_in("pipe, too", set, -1);
	close(client);
	close(fd);
	close(copy);
	close(set);
	close(pipes[0]);
	close(pipes[1]);

	/* A set with two fds. */
	fd = listen_at(AF_INET);
	set = epoll_create1(EPOLL_CLOEXEC);
	copy = fcntl(set, F_DUPFD_CLOEXEC, 0);
	say("add by another fd", control(copy, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
	settle(set);
	settle(copy);
	settle(set);
	client = connect_one();
	wait_in("one", set, -1);
	wait_in("other", copy, -1);
	say("modify", control(set, EPOLL_CTL_MOD, fd, EPOLLIN, 2));
	wait_in("modified", copy, -1);
	close(copy);
	wait_in("one is left", set, -1);
	accept_one(fd);
	say("delete", control(set, EPOLL_CTL_DEL, fd, 0, 0));
	close(client);
	close(set);
	close(fd);

	/* The fd that was waited in is closed first. */
	fd = listen_at(AF_INET);
	set = epoll_create1(EPOLL_CLOEXEC);
	copy = fcntl(set, F_DUPFD_CLOEXEC, 0);
	say("add", control(set, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
	settle(set);
	close(set);
	say("modify", control(copy, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLRDHUP, 2));
	client = connect_one();
	wait_in("the copy", copy, -1);
	accept_one(fd);
	wait_in("the copy", copy, 0);
	say("delete", control(copy, EPOLL_CTL_DEL, fd, 0, 0));
	close(client);
	close(copy);
	close(fd);
}

static void forks(void)
{
	int fd = listen_at(AF_INET), set = epoll_create1(EPOLL_CLOEXEC), client;

	printf("forks\n");
	say("add", control(set, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
	settle(set);
	fflush(stdout);
	if (fork() == 0) {
		settle(set);
		client = connect_one();
		wait_in("child", set, -1);
		say("modify", control(set, EPOLL_CTL_MOD, fd, EPOLLIN, 2));
		wait_in("child", set, -1);
		accept_one(fd);
		close(client);
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
	settle(set);
	client = connect_one();
	wait_in("parent", set, -1);
	say("modify", control(set, EPOLL_CTL_MOD, fd, EPOLLIN, 3));
	wait_in("parent", set, -1);
	accept_one(fd);
	close(client);
	settle(set);
	if (fork() == 0) {
		say("delete", control(set, EPOLL_CTL_DEL, fd, 0, 0));
		_exit(0);
	}
	wait(NULL);
	client = connect_one();
	wait_in("deleted by the child", set, 50);
	say("add", control(set, EPOLL_CTL_ADD, fd, EPOLLIN, 4));
	wait_in("added", set, -1);
	/* The child of a vfork has an fd table of its own, and shares the parent's memory. */
	accept_one(fd);
	close(client);
	settle(set);
	if (vfork() == 0) {
		close(fd);
		close(set);
		_exit(0);
	}
	wait(NULL);
	client = connect_one();
	wait_in("after vfork", set, -1);
	accept_one(fd);
	close(client);
	close(set);
	close(fd);
}

/* Repeated, because a signal before the call does not end it. */
#define INTERRUPTED(call) do { \
		int ended; \
		ualarm(50000, 50000); \
		ended = call; \
		ualarm(0, 0); \
		say("signal", ended); \
	} while (0)

static void times_and_signals(void)
{
	int fd = listen_at(AF_INET), set = epoll_create1(EPOLL_CLOEXEC);
	struct sigaction action = {.sa_handler = nothing, .sa_flags = SA_RESTART};
	struct timespec start, second = {1, 200000000}, wrong = {0, 1000000000};
	struct epoll_event event;
	struct pollfd entry = {.fd = fd, .events = POLLIN};
	struct timeval time = {0, 300000};
	sigset_t mask, before, after;
	fd_set read;

	printf("times and signals\n");
	sigaction(SIGALRM, &action, NULL);
	say("add", control(set, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
	clock_gettime(CLOCK_MONOTONIC, &start);
	say("wait", epoll_wait(set, &event, 1, 1200));
	say("not early", since(&start) >= 1199);
	clock_gettime(CLOCK_MONOTONIC, &start);
	say("wait", epoll_pwait2(set, &event, 1, &second, NULL));
	say("not early", since(&start) >= 1199);
	say("wrong time", epoll_pwait2(set, &event, 1, &wrong, NULL));
	say("wait", epoll_wait(set, &event, 1, 0));
	INTERRUPTED(epoll_wait(set, &event, 1, -1));
	INTERRUPTED(epoll_wait(set, &event, 1, 60000));
	INTERRUPTED(epoll_pwait2(set, &event, 1, NULL, NULL));
	alarm(2);
	say("late signal", epoll_wait(set, &event, 1, -1));
	INTERRUPTED(poll(&entry, 1, -1));
	FD_ZERO(&read);
	FD_SET(fd, &read);
	INTERRUPTED(select(fd + 1, &read, NULL, NULL, NULL));
	say("set", FD_ISSET(fd, &read) != 0);
	sigprocmask(SIG_SETMASK, NULL, &before);
	sigemptyset(&mask);
	sigaddset(&mask, SIGALRM);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	sigemptyset(&mask);
	ualarm(1000, 0);
	usleep(20000);
	say("pending", epoll_pwait(set, &event, 1, -1, &mask));
	ualarm(1000, 0);
	usleep(20000);
	say("pending, blocked", epoll_wait(set, &event, 1, 30));
	say("pending", ppoll(&entry, 1, NULL, &mask));
	ualarm(1000, 0);
	usleep(20000);
	say("pending, blocked", poll(&entry, 1, 30));
	FD_ZERO(&read);
	FD_SET(fd, &read);
	say("pending", pselect(fd + 1, &read, NULL, NULL, NULL, &mask));
	sigprocmask(SIG_SETMASK, &before, &after);
	say("mask", sigismember(&after, SIGALRM) && !sigismember(&after, SIGTERM));
	FD_ZERO(&read);
	FD_SET(fd, &read);
	clock_gettime(CLOCK_MONOTONIC, &start);
	say("select", select(fd + 1, &read, NULL, NULL, &time));
	say("not early", since(&start) >= 299);
	say("set", FD_ISSET(fd, &read) != 0);
	say("time left", time.tv_sec * 1000000 + time.tv_usec);
	clock_gettime(CLOCK_MONOTONIC, &start);
	say("poll", poll(&entry, 1, 1200));
	say("not early", since(&start) >= 1199);
	close(set);
	close(fd);
}

static int open_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

static sigjmp_buf out;

static void jump(int number)
{
	(void)number;
	siglongjmp(out, 1);
}

/* A handler that leaves a wait by siglongjmp leaves nothing behind. */
static void jumps(void)
{
	int fd = listen_at(AF_INET), set = epoll_create1(EPOLL_CLOEXEC), before = open_fds(), client;
	struct pollfd entry = {.fd = fd, .events = POLLIN};
	struct epoll_event event;
	sigset_t mask;

	printf("jumps\n");
	signal(SIGALRM, jump);
	say("add", control(set, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
	for (volatile int i = 0; i < 4; i++) {
		if (sigsetjmp(out, 1) == 0) {
			ualarm(50000, 0);
			if (i % 2)
				poll(&entry, 1, -1);
			else
				epoll_wait(set, &event, 1, -1);
		}
		sigprocmask(SIG_BLOCK, NULL, &mask);
		say("blocked", sigismember(&mask, SIGTERM) || sigismember(&mask, SIGALRM));
	}
	signal(SIGALRM, SIG_DFL);
	say("fds left open", open_fds() - before);
	client = connect_one();
	wait_in("connection", set, -1);
	say("poll", poll(&entry, 1, -1));
	accept_one(fd);
	close(client);
	close(set);
	close(fd);
}

/* A signal that the program ignores by default does not end a wait, whenever it comes. */
static void ignored_signals(void)
{
	static const int ignored[] = {SIGCHLD, SIGURG, SIGWINCH, SIGCONT};
	int fd = listen_at(AF_INET), set = epoll_create1(EPOLL_CLOEXEC), ended[3] = {0};
	struct pollfd entry = {.fd = fd, .events = POLLIN};
	struct epoll_event event;
	struct timespec time = {0, 1000000};
	sigset_t none;
	pid_t parent = getpid(), sender;

	printf("ignored signals\n");
	say("add", control(set, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
	sigemptyset(&none);
	sender = fork();
	if (sender == 0)
		for (unsigned i = 0; getppid() == parent; i++)
			kill(parent, ignored[i % 4]);
	for (int i = 0; i < 200; i++) {
		ended[0] += epoll_wait(set, &event, 1, 1) < 0;
		ended[1] += epoll_pwait(set, &event, 1, 1, &none) < 0;
		ended[2] += ppoll(&entry, 1, &time, NULL) < 0;
	}
	say("epoll_wait", ended[0]);
	say("epoll_pwait", ended[1]);
	say("ppoll", ended[2]);
	kill(sender, SIGKILL);
	waitpid(sender, NULL, 0);
	close(set);
	close(fd);
}

static void polls(void)
{
	int fd = listen_at(AF_INET), pipes[2], client, file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	struct pollfd list[4];
	fd_set read, write_set, except;
	struct timeval time = {5, 0};

	printf("poll and select\n");
	pipe2(pipes, O_CLOEXEC);
	list[0] = (struct pollfd){.fd = -1, .events = POLLIN};
	list[1] = (struct pollfd){.fd = fd, .events = POLLIN};
	list[2] = (struct pollfd){.fd = pipes[0], .events = POLLIN};
	list[3] = (struct pollfd){.fd = fd, .events = POLLOUT};
#define POLL(what, count, timeout) do { \
		say(what, poll(list, count, timeout)); \
		printf(" %x %x %x %x\n", list[0].revents, list[1].revents, list[2].revents, list[3].revents); \
	} while (0)
	POLL("idle", 3, 30);
	POLL("twice", 4, 30);
	client = connect_one();
	POLL("connection", 3, -1);
	accept_one(fd);
	close(client);
	say("write", write(pipes[1], "x", 1));
	POLL("pipe", 3, -1);
	close(pipes[1]);
	POLL("end", 3, -1);
	list[2].fd = file;
	POLL("file", 3, 1000);
	list[2].fd = 999;
	POLL("closed", 3, 1000);
	list[2].fd = -1;
	if (fork() == 0) {
		usleep(100000);
		client = connect_one();
		usleep(100000);
		_exit(0);
	}
	POLL("later", 3, -1);
	accept_one(fd);
	wait(NULL);
	shutdown(fd, SHUT_RDWR);
	POLL("shut down", 3, -1);
	close(fd);
	close(pipes[0]);

	fd = listen_at(AF_INET);
	pipe2(pipes, O_CLOEXEC);
	FD_ZERO(&read);
	FD_ZERO(&write_set);
	FD_ZERO(&except);
	FD_SET(fd, &read);
	FD_SET(pipes[0], &read);
	FD_SET(pipes[0], &except);
	if (fork() == 0) {
		usleep(100000);
		client = connect_one();
		usleep(100000);
		_exit(0);
	}
	say("select", select(pipes[1] + 1, &read, &write_set, &except, &time));
	say("time went", time.tv_sec < 5);
	say("socket", FD_ISSET(fd, &read) != 0);
	say("pipe", FD_ISSET(pipes[0], &read) != 0);
	accept_one(fd);
	wait(NULL);
	FD_ZERO(&read);
	FD_SET(fd, &read);
	FD_SET(pipes[1], &write_set);
	say("writable", select(pipes[1] + 1, &read, &write_set, NULL, NULL));
	FD_ZERO(&except);
	FD_SET(fd, &read);
	FD_SET(pipes[0], &except);
	close(pipes[1]);
	time = (struct timeval){0, 100000};
	say("hang-up only", select(pipes[0] + 1, &read, NULL, &except, &time));
	FD_SET(fd, &read);
	FD_SET(pipes[1], &read);
	say("closed", select(pipes[1] + 1, &read, NULL, NULL, NULL));
	say("no time", select(fd + 1, &read, NULL, NULL, &(struct timeval){-1, 0}));
	close(fd);
	close(pipes[0]);
	close(file);
}

static struct {
	fd_set set;
	char after[512 - sizeof(fd_set)];
} sized;

static void *write_after(void *unused)
{
	usleep(50000);
	memset(sized.after, 'x', sizeof sized.after);
	return unused;
}

/* Memory that cannot be read or written, and an `nfds` that exceeds the sets. */
static void pointers(void)
{
	int fd = listen_at(AF_INET);
	struct timespec short_time = {0, 30000000};
	struct pollfd *volatile bad_list = (void *)16;
	char *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct pollfd *end = (struct pollfd *)(pages + 4096) - 1;
	fd_set *odd = (fd_set *)(pages + 4096 - 8), *constant = (fd_set *)(pages + 2 * 4096);
	fd_set *volatile bad = (void *)16, read;
	struct timeval time;
	pthread_t thread;
	int status;
	pid_t child;

	printf("pointers\n");
	mprotect(pages + 4096, 4096, PROT_NONE);
	*end = (struct pollfd){.fd = fd, .events = POLLIN};
	FD_ZERO(constant);
	FD_SET(fd, constant);
	mprotect(pages + 2 * 4096, 4096, PROT_READ);
	say("poll", poll(bad_list, 1, 30));
	say("ppoll", ppoll(bad_list, 1, &short_time, NULL));
	say("poll of none", poll(bad_list, 0, 30));
	say("poll of the last", poll(end, 1, 30));
	say("poll beyond the end", poll(end, 2, 30));
	say("too many", poll(end, 1ul << 40, 30));
#define SELECT(what, count, a, b, c) do { \
		time = (struct timeval){0, 30000}; \
		say(what, select(count, a, b, c, &time)); \
		say(what, pselect(count, a, b, c, &short_time, NULL)); \
	} while (0)
	FD_ZERO(&read);
	FD_SET(fd, &read);
	SELECT("read from nowhere", fd + 1, bad, NULL, NULL);
	SELECT("write to nowhere", fd + 1, &read, bad, NULL);
	SELECT("nowhere", fd + 1, &read, NULL, bad);
	say("set", FD_ISSET(fd, &read) != 0);
	SELECT("half a set", 65, odd, NULL, NULL);
	SELECT("set that cannot be written", fd + 1, constant, NULL, NULL);
	mprotect(pages + 2 * 4096, 4096, PROT_NONE);
	SELECT("set that cannot be read any more", fd + 1, constant, NULL, NULL);
	SELECT("wrong fd", -1, &read, NULL, NULL);
	/* The rest of a short set cannot be written. The table of a child has room for the open fds, and the kernel reads no bits
	 * beyond. */
	fflush(stdout);
	child = fork();
	for (int way = 0; child == 0 && way < 4; way++) {
		mprotect(pages + 4096, 4096, PROT_READ | PROT_WRITE);
		memset(pages + 4096, way / 2, 4096);
		mprotect(pages + 4096, 4096, PROT_READ);
		*(long *)odd = 1L << fd;
		time = (struct timeval){0, 30000};
		if (way % 2)
			say("short set", select(FD_SETSIZE, odd, NULL, NULL, &time));
		else
			say("short set", pselect(FD_SETSIZE, odd, NULL, NULL, &short_time, NULL));
	}
	if (child == 0)
		_exit(0);
	waitpid(child, &status, 0);
	say("status", status);

	/* The kernel reads as many bits as the process may have fds. */
	FD_ZERO(&sized.set);
	FD_SET(fd, &sized.set);
	pthread_create(&thread, NULL, write_after, NULL);
	time = (struct timeval){0, 300000};
	say("select of more than there are", select(4096, &sized.set, NULL, NULL, &time));
	pthread_join(thread, NULL);
	for (size_t i = 0; i < sizeof sized.after; i++)
		if (sized.after[i] != 'x') {
			printf("overwritten at %zu\n", i);
			break;
		}
	munmap(pages, 3 * 4096);
	close(fd);
}

/* A program that uses io_uring continues to do so. */
static void ring(void)
{
	unsigned parameters[64] = {0};
	long fd = syscall(SYS_io_uring_setup, 4, parameters);

	say("ring", fd < 0 ? -1 : 0);
	if (fd >= 0) {
		say("no-op", syscall(SYS_io_uring_enter, fd, 0, 0, 0, NULL, 0));
		close(fd);
	}
	say("nowhere for its parameters", syscall(SYS_io_uring_setup, 4, nowhere));
}

static int shared_set, shared_fd;
static int served;

static void *serve(void *unused)
{
	struct epoll_event event;

	(void)unused;
	while (epoll_wait(shared_set, &event, 1, -1) == 1) {
		int connection;

		if (event.data.u64 == 2)
			break;
		connection = accept4(shared_fd, NULL, NULL, SOCK_CLOEXEC);
		if (connection >= 0) {
			__atomic_fetch_add(&served, 1, __ATOMIC_RELAXED);
			close(connection);
		}
	}
	return NULL;
}

static void threads(void)
{
	int end = eventfd(0, EFD_CLOEXEC);
	pthread_t threads[4];
	char byte;

	printf("threads\n");
	shared_fd = listen_at(AF_INET);
	shared_set = epoll_create1(EPOLL_CLOEXEC);
	control(shared_set, EPOLL_CTL_ADD, shared_fd, EPOLLIN, 1);
	control(shared_set, EPOLL_CTL_ADD, end, EPOLLIN, 2);
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, serve, NULL);
	for (int i = 0; i < 300; i++) {
		int client = connect_one();

		if (i % 7 == 0)
			control(shared_set, EPOLL_CTL_MOD, shared_fd, EPOLLIN, 1);
		if (read(client, &byte, 1) != 0)
			printf("not closed\n");
		close(client);
	}
	say("served", served);
	eventfd_write(end, 1);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	close(end);
	close(shared_set);
	close(shared_fd);
}

static pid_t waiting_thread;
static int waiting_time;

static void *wait_for_events(void *found)
{
	struct epoll_event event;

	__atomic_store_n(&waiting_thread, syscall(SYS_gettid), __ATOMIC_RELAXED);
	*(int *)found = epoll_wait(shared_set, &event, 1, waiting_time) > 0;
	__atomic_store_n(&waiting_thread, -1, __ATOMIC_RELAXED);
	return NULL;
}

/* Returns the number of the call if a thread sleeps in epoll_wait, poll, select or their like: the first word of the file.
 * Otherwise it is -1. */
static long wait_of(pid_t thread)
{
	static const long calls[] = {
#ifdef SYS_epoll_wait
		SYS_epoll_wait, SYS_poll, SYS_select,
#endif
		SYS_epoll_pwait, SYS_epoll_pwait2, SYS_ppoll, SYS_pselect6,
	};
	char name[64];
	long call = -1;
	FILE *file;

	snprintf(name, sizeof name, "/proc/self/task/%d/syscall", thread);
	file = fopen(name, "re");
	if (!file) {
		/* The kernel has no such file: the thread should be there by then. */
		usleep(300000);
		return SYS_getppid;
	}
	if (fscanf(file, "%ld", &call) != 1)
		call = -1;
	fclose(file);
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		if (call == calls[i])
			return call;
	return -1;
}

static void start_thread(pthread_t *thread, void *(*function)(void *), int *found, int time)
{
	waiting_thread = 0;
	waiting_time = time;
	pthread_create(thread, NULL, function, found);
	for (int tries = 0; tries < 60000; tries++) {
		pid_t number = __atomic_load_n(&waiting_thread, __ATOMIC_RELAXED);

		/* On a busy machine it may be over. */
		if (number && (number == -1 || wait_of(number) >= 0))
			return;
		usleep(1000);
	}
	printf("not asleep\n");
}

enum { BY_CLOSE, BY_DUP2, BY_DUP3, BY_CLOSE_RANGE, BY_CLOSEFROM, WAYS };

/* Another thread closes the fd of a set, and another set gets its fd. The set may have been polled before. */
static void closed_while_a_thread_sleeps(int way, int is_polled)
{
	int end = eventfd(1, EFD_CLOEXEC), found = 0, other = -1;
	struct pollfd entry = {.events = POLLIN};
	pthread_t thread;

	printf("closed while a thread sleeps: %d, %d\n", way, is_polled);
	shared_fd = listen_at(AF_INET);
	shared_set = entry.fd = epoll_create1(EPOLL_CLOEXEC);
	control(shared_set, EPOLL_CTL_ADD, shared_fd, EPOLLIN, 1);
	start_thread(&thread, wait_for_events, &found, 700);
	if (is_polled)
		say("poll", poll(&entry, 1, 1));
	switch (way) {
	case BY_CLOSE:
		say("close", close(shared_set));
		break;
	case BY_CLOSE_RANGE:
		say("close_range", close_range(shared_set, shared_set, 0));
		break;
	case BY_CLOSEFROM:
		closefrom(shared_set);
		break;
	}
	other = epoll_create1(EPOLL_CLOEXEC);
	control(other, EPOLL_CTL_ADD, end, EPOLLIN, 2);
	if (way == BY_DUP2)
		say("dup2", dup2(other, shared_set) == shared_set);
	else if (way == BY_DUP3)
		say("dup3", dup3(other, shared_set, O_CLOEXEC) == shared_set);
	else
		say("the fd", other == shared_set);
	pthread_join(thread, NULL);
	say("events of the other set", found);
	wait_in("the other set", shared_set, 0);
	if (other != shared_set)
		close(other);
	close(shared_set);
	close(end);
	close(shared_fd);
}

/* A set that is polled, or a failed dup2 to its fd, does not end a wait in it. */
static void waits_on(void)
{
	int found = 0, outer = epoll_create1(EPOLL_CLOEXEC), client;
	struct pollfd entry = {.events = POLLIN};
	pthread_t thread;

	printf("waits on\n");
	shared_fd = listen_at(AF_INET);
	for (int way = 0; way < 4; way++) {
		/* Its own set each time: one that was polled stays as it is for good. */
		shared_set = entry.fd = epoll_create1(EPOLL_CLOEXEC);
		control(shared_set, EPOLL_CTL_ADD, shared_fd, EPOLLIN, 1);
		start_thread(&thread, wait_for_events, &found, 60000);
		if (way == 0)
			say("dup2", dup2(-1, shared_set));
		else if (way == 1)
			say("dup2", dup2(shared_set, shared_set) == shared_set);
		else if (way == 2)
			say("poll", poll(&entry, 1, 1));
		else
			say("add", control(outer, EPOLL_CTL_ADD, shared_set, EPOLLIN, 1));
		usleep(250000);
		client = connect_one();
		pthread_join(thread, NULL);
		say("found", found);
		wait_in("the outer set", outer, 0);
		accept_one(shared_fd);
		close(client);
		close(shared_set);
	}
	close(outer);
	close(shared_fd);
}

static void *poll_listener(void *result)
{
	struct pollfd entry = {.fd = shared_fd, .events = POLLIN};

	__atomic_store_n(&waiting_thread, syscall(SYS_gettid), __ATOMIC_RELAXED);
	*(int *)result = poll(&entry, 1, waiting_time);
	if (*(int *)result < 0)
		*(int *)result = -errno;
	__atomic_store_n(&waiting_thread, -1, __ATOMIC_RELAXED);
	return NULL;
}

static void *select_listener(void *result)
{
	struct timespec time = {waiting_time / 1000, waiting_time % 1000 * 1000000L};
	fd_set read;

	FD_ZERO(&read);
	FD_SET(shared_fd, &read);
	__atomic_store_n(&waiting_thread, syscall(SYS_gettid), __ATOMIC_RELAXED);
	*(int *)result = pselect(shared_fd + 1, &read, NULL, NULL, &time, NULL);
	if (*(int *)result < 0)
		*(int *)result = -errno;
	__atomic_store_n(&waiting_thread, -1, __ATOMIC_RELAXED);
	return NULL;
}

enum { LAST = 300, BY_SYSCALL = WAYS, MORE_WAYS };

/* While a thread sleeps in poll or select, the program takes all fds that are free, also one that the library has in
 * use. The call returns what it should, and the files are left alone. */
static void fds_while_a_thread_polls(int way, int is_select, int is_in_time)
{
	int pipes[2], top, client = -1, result = -9, left_alone = 0;
	pthread_t thread;

	printf("fds while a thread polls: %d, %d, %d\n", way, is_select, is_in_time);
	shared_fd = listen_at(AF_INET);
	pipe2(pipes, O_CLOEXEC);
	/* The library does not look after this set, and has no reason to look at its fd. */
	shared_set = top = epoll_create1(EPOLL_CLOEXEC);
	control(shared_set, EPOLL_CTL_ADD, shared_fd, EPOLLIN | EPOLLONESHOT, 7);
	start_thread(&thread, is_select ? select_listener : poll_listener, &result, is_in_time ? 60000 : 700);
	say("the lowest fd", fcntl(pipes[0], F_DUPFD_CLOEXEC, 0) == top + 1);
	close(top + 1);
	if (way == BY_CLOSE_RANGE)
		say("close_range", close_range(top + 1, ~0u, 0));
	else if (way == BY_CLOSEFROM)
		closefrom(top + 1);
	for (int fd = top + 1; fd <= LAST; fd++) {
		/* Every other file is a copy of the set. */
		int file = fd % 2 ? pipes[0] : shared_set;

		if (way == BY_CLOSE)
			close(fd);
		else if (way == BY_SYSCALL)
			syscall(SYS_close, fd);
		if ((way == BY_DUP2 ? dup2(file, fd) : way == BY_DUP3 ? dup3(file, fd, O_CLOEXEC) :
			fcntl(file, F_DUPFD_CLOEXEC, fd)) != fd)
			printf("%d is not free\n", fd);
	}
	usleep(300000);
	if (is_in_time)
		client = connect_one();
	pthread_join(thread, NULL);
	say("result", result);
	for (int fd = top + 1; fd <= LAST; fd++)
		left_alone += fcntl(fd, F_GETFD) >= 0;
	say("left alone", left_alone == LAST - top);
	if (is_in_time) {
		wait_in("the set", shared_set, 1000);
		accept_one(shared_fd);
		close(client);
	}
	say("the pipe", write(pipes[1], "x", 1));
	for (int fd = pipes[0]; fd <= LAST; fd++)
		close(fd);
	close(shared_fd);
}

/* A set that gets the fd of another one keeps its registrations when that fd is closed. */
static void replaced(void)
{
	int fd = listen_at(AF_INET), client;

	for (int way = 0; way < 3; way++) {
		int old = epoll_create1(EPOLL_CLOEXEC), set = epoll_create1(EPOLL_CLOEXEC);

		printf("replaced: %d\n", way);
		control(old, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
		control(set, EPOLL_CTL_ADD, fd, EPOLLIN, 2);
		settle(old);
		if (way == 2) {
			say("close_range", close_range(old, old, CLOSE_RANGE_UNSHARE));
			say("copy", fcntl(set, F_DUPFD_CLOEXEC, old) == old);
		} else if (way)
			say("dup3", dup3(set, old, O_CLOEXEC) == old);
		else
			say("dup2", dup2(set, old) == old);
		close(old);
		client = connect_one();
		wait_in("set", set, -1);
		accept_one(fd);
		say("modify", control(set, EPOLL_CTL_MOD, fd, EPOLLIN, 3));
		close(client);
		close(set);
	}
	close(fd);
}

static void *modify(void *stop)
{
	while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED))
		control(shared_set, EPOLL_CTL_MOD, shared_fd, EPOLLIN, 1);
	return NULL;
}

/* A thread for which the kernel has no memory to add a socket changes the interest in one. */
static void *modify_without_memory(void *result)
{
	struct sock_filter steps[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_ctl, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, EPOLL_CTL_ADD, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {sizeof steps / sizeof *steps, steps};

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
	*(int *)result = control(shared_set, EPOLL_CTL_MOD, shared_fd, EPOLLIN, 9);
	return NULL;
}

/* A filter of a program whose limits are whole milliseconds may kill it for calls with finer ones. */
static void limits_in_milliseconds(void)
{
	struct sock_filter steps[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait2, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {sizeof steps / sizeof *steps, steps};
	int status = -1;
	pid_t child;

	printf("limits in milliseconds\n");
	fflush(stdout);
	child = fork();
	if (child == 0) {
		int fd = listen_at(AF_INET), set = epoll_create1(EPOLL_CLOEXEC);
		struct pollfd entry = {fd, POLLIN, 0};
		struct epoll_event event;

		control(set, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
		prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
		_exit(epoll_wait(set, &event, 1, 130) + 2 * poll(&entry, 1, 130));
	}
	waitpid(child, &status, 0);
	say("status", status);
}

/* The next wait carries out a change for which there was no memory, also if it has other events. */
static void no_memory(void)
{
	int end = eventfd(0, EFD_CLOEXEC), result = -9, client, found;
	struct epoll_event events[8];
	pthread_t thread;

	printf("no memory\n");
	shared_fd = listen_at(AF_INET);
	shared_set = epoll_create1(EPOLL_CLOEXEC);
	control(shared_set, EPOLL_CTL_ADD, end, EPOLLIN, 1);
	control(shared_set, EPOLL_CTL_ADD, shared_fd, EPOLLIN, 2);
	settle(shared_set);
	pthread_create(&thread, NULL, modify_without_memory, &result);
	pthread_join(thread, NULL);
	say("modified", result == 0);
	eventfd_write(end, 1);
	client = connect_one();
	found = epoll_wait(shared_set, events, 8, -1);
	say("events", found);
	for (int i = 0; i < found; i++)
		say("data is known", events[i].data.u64 == 1 || events[i].data.u64 == 9);
	accept_one(shared_fd);
	close(client);
	close(end);
	close(shared_set);
	close(shared_fd);
}

/* Children made without fork's handlers, while threads of the parent change the set. */
static void raw_forks(void)
{
	pthread_t threads[2];
	int stop = 0, ended = 0, status;

	printf("raw forks\n");
	shared_fd = listen_at(AF_INET);
	shared_set = epoll_create1(EPOLL_CLOEXEC);
	control(shared_set, EPOLL_CTL_ADD, shared_fd, EPOLLIN, 1);
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, modify, &stop);
	for (int i = 0; i < 30; i++) {
		pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

		if (child == 0) {
			struct epoll_event event;

			alarm(60);
			_exit(epoll_wait(shared_set, &event, 1, 5));
		}
		ended += waitpid(child, &status, 0) == child && status == 0;
	}
	say("ended", ended);
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	close(shared_set);
	close(shared_fd);
}

static int ends_after_fork;

static void end_after_fork(void)
{
	if (ends_after_fork)
		_exit(0);
}

/* Returns how many grandchildren find an fd closed that the child of a bare clone has put a file under. The child ends as
 * it forks, and the calling process adopts the grandchild. */
static int closed_in_orphans(int taken)
{
	int closed = 0, status;
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	pthread_atfork(NULL, end_after_fork, NULL);
	for (int i = 0; i < 50; i++) {
		pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

		if (child == 0) {
			/* So that it nearly always ends before the grandchild runs. */
			sched_setaffinity(0, sizeof one, &one);
			dup2(shared_fd, taken);
			ends_after_fork = 1;
			fork();
			_exit(fcntl(taken, F_GETFD) < 0);
		}
		waitpid(child, &status, 0);
		waitpid(-1, &status, 0);
		closed += WEXITSTATUS(status);
	}
	prctl(PR_SET_CHILD_SUBREAPER, 0);
	return closed;
}

/* A child has none of the library's fds, and keeps the program's: a bare clone may have put one in their place. */
static void children_of_a_polling_thread(void)
{
	int before, taken = 40, status, result = -9;
	pthread_t thread;
	pid_t child;

	printf("children of a polling thread\n");
	shared_fd = listen_at(AF_INET);
	before = open_fds();
	start_thread(&thread, poll_listener, &result, 1500);
	for (int fd = 32; fd < 64; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			taken = fd;
	fflush(stdout);
	child = fork();
	if (child == 0)
		_exit(open_fds() - before);
	waitpid(child, &status, 0);
	say("further fds of the child", WEXITSTATUS(status));
	child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (child == 0) {
		dup2(shared_fd, taken);
		child = fork();
		if (child == 0)
			_exit(fcntl(taken, F_GETFD) < 0);
		waitpid(child, &status, 0);
		_exit(WEXITSTATUS(status));
	}
	waitpid(child, &status, 0);
	say("closed in the child of a bare clone", WEXITSTATUS(status));
	say("closed in orphans", closed_in_orphans(taken));
	pthread_join(thread, NULL);
	say("result", result);
	close(shared_fd);
}

static int fds_to_take[2];

/* Takes the fd that it reads, and forks. The process ends with 1 if the child finds the fd closed. */
static void *take_fd(void *unused)
{
	int taken, status;
	pid_t child;

	read(fds_to_take[0], &taken, sizeof taken);
	taken = fcntl(shared_fd, F_DUPFD, taken);
	child = fork();
	if (child == 0)
		_exit(fcntl(taken, F_GETFD) < 0);
	waitpid(child, &status, 0);
	_exit(WEXITSTATUS(status));
	return unused;
}

/* Takes the fd that it reads for a listening socket, and sleeps in a select of it. */
static void *listen_at_fd(void *unused)
{
	struct sockaddr_in any = {.sin_family = AF_INET};
	fd_set selected;
	int taken;

	read(fds_to_take[0], &taken, sizeof taken);
	taken = fcntl(socket(AF_INET, SOCK_STREAM, 0), F_DUPFD, taken);
	if (bind(taken, (struct sockaddr *)&any, sizeof any) || listen(taken, 64))
		_exit(2);
	FD_ZERO(&selected);
	FD_SET(taken, &selected);
	__atomic_store_n(&waiting_thread, syscall(SYS_gettid), __ATOMIC_RELAXED);
	select(taken + 1, &selected, NULL, NULL, NULL);
	return unused;
}

/* Returns whether the thread of listen_at_fd sleeps in another call than it should: the library waits in a set. */
static int sleeps_elsewhere(void)
{
	const char *policy = getenv("UPOLL_FAIR");
	long call = -1;

	for (int tries = 0; call < 0 && tries < 10000; tries++) {
		pid_t thread = __atomic_load_n(&waiting_thread, __ATOMIC_RELAXED);

		call = thread ? wait_of(thread) : -1;
		usleep(1000);
	}
	if (policy && strcmp(policy, "observe"))
		return call != SYS_epoll_pwait && call != SYS_getppid;
	return call < 0;
}

/* A poll stands still just as the library has closed its fd. Another thread takes the fd, and forks or listens. */
static void a_poll_ends(int listens)
{
	struct __ptrace_syscall_info call;
	int status, taken = 40, is_closed = 0;
	pid_t child;

	printf("%s as a poll ends\n", listens ? "listen" : "fork");
	shared_fd = listen_at(AF_INET);
	pipe(fds_to_take);
	waiting_thread = 0;
	fflush(stdout);
	child = fork();
	if (child == 0) {
		struct pollfd entry = {.fd = shared_fd, .events = POLLIN};
		pthread_t thread;

		pthread_create(&thread, NULL, listens ? listen_at_fd : take_fd, NULL);
		if (ptrace(PTRACE_TRACEME, 0, 0, 0))
			_exit(0);
		raise(SIGSTOP);
		poll(&entry, 1, 50);
		/* Marks the end of the poll for the tracer. */
		syscall(SYS_getppid);
		if (listens)
			_exit(sleeps_elsewhere());
		pause();
	}
	while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
		memset(&call, 0, sizeof call);
		ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD);
		ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof call, &call);
		if (call.op == PTRACE_SYSCALL_INFO_ENTRY && call.entry.nr == SYS_close && call.entry.args[0] >= 32) {
			taken = call.entry.args[0];
			is_closed = 1;
		} else if (is_closed || (call.op == PTRACE_SYSCALL_INFO_ENTRY && call.entry.nr == SYS_getppid)) {
			write(fds_to_take[1], &taken, sizeof taken);
			if (listens) {
				/* The thread listens meanwhile, or waits until the fd is closed for the library, too. */
				usleep(300000);
				ptrace(PTRACE_DETACH, child, 0, 0);
			}
			waitpid(child, &status, 0);
			break;
		}
		ptrace(PTRACE_SYSCALL, child, 0, 0);
	}
	say(listens ? "sleeps elsewhere" : "closed in the child", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
	close(fds_to_take[0]);
	close(fds_to_take[1]);
	close(shared_fd);
}

static int blocking_listener;

static void *accept_blocking(void *unused)
{
	int connection = accept(blocking_listener, NULL, NULL);

	(void)unused;
	say("blocking accept", connection < 0 ? -1 : 0);
	close(connection);
	return NULL;
}

static void blocking(void)
{
	pthread_t thread;
	int client;

	printf("blocking\n");
	blocking_listener = listen_at(AF_INET);
	fcntl(blocking_listener, F_SETFL, 0);
	pthread_create(&thread, NULL, accept_blocking, NULL);
	usleep(20000);
	client = connect_one();
	pthread_join(thread, NULL);
	close(client);
	close(blocking_listener);
}

static int blocked_at_the_end;

/* A cleanup handler of a cancelled thread has the mask that the thread had. */
static void look_at_mask(void *unused)
{
	sigset_t mask;

	(void)unused;
	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	blocked_at_the_end = sigismember(&mask, SIGTERM);
}

static void *cancelled(void *mode)
{
	struct pollfd entry = {.fd = shared_fd, .events = POLLIN};
	struct epoll_event event;

	pthread_cleanup_push(look_at_mask, NULL);
	if (mode)
		poll(&entry, 1, -1);
	else
		epoll_wait(shared_set, &event, 1, -1);
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancellation(void)
{
	printf("cancellation\n");
	shared_fd = listen_at(AF_INET);
	shared_set = epoll_create1(EPOLL_CLOEXEC);
	control(shared_set, EPOLL_CTL_ADD, shared_fd, EPOLLIN, 1);
	for (int i = 0; i < 2; i++) {
		pthread_t thread;
		void *result;

		pthread_create(&thread, NULL, cancelled, i ? &thread : NULL);
		usleep(100000);
		pthread_cancel(thread);
		pthread_join(thread, &result);
		say("cancelled", result == PTHREAD_CANCELED);
		say("signal blocked", blocked_at_the_end);
	}
	close(shared_set);
	close(shared_fd);
}

int main(void)
{
	int before;

	/* As one of the tests does. */
	closefrom(3);
	before = open_fds();
	signal(SIGPIPE, SIG_IGN);
	changes(AF_INET);
	changes(AF_INET6);
	changes(AF_UNIX);
	edge();
	oneshot();
	hang_up();
	exclusive();
	several_sets();
	nested(0);
	nested(1);
	fds();
	forks();
	times_and_signals();
	jumps();
	ignored_signals();
	polls();
	/* Before the first thread: the table of fds is to stay that of the whole process. */
	replaced();
	pointers();
	ring();
	threads();
	for (int way = 0; way < WAYS; way++)
		for (int is_polled = 0; is_polled < 2; is_polled++)
			closed_while_a_thread_sleeps(way, is_polled);
	waits_on();
	for (int way = 0; way < MORE_WAYS; way++) {
		fds_while_a_thread_polls(way, way % 2, 1);
		fds_while_a_thread_polls(way, !(way % 2), 0);
	}
	children_of_a_polling_thread();
	a_poll_ends(0);
	a_poll_ends(1);
	raw_forks();
	no_memory();
	limits_in_milliseconds();
	blocking();
	cancellation();
	say("fds left open", open_fds() - before);
	return 0;
}
