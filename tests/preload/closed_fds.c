/* A program closes and replaces all fds that it did not open, which include own fds of libupoll and
 * of the preload. The files of the program do not change, and its sets still work. It uses
 * close_range(2), the raw system call, and dup2(2) to every fd. */
#include "../c/check.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { CONNECTIONS = 200, FDS = 1024 };

static int set, counter, near, far;
static char path[] = "/tmp/closed_fds.XXXXXX";

/* Opens the fds that the test keeps: 3 and the next ones. */
static void make(void)
{
	int ends[2], listener;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof at;
	struct epoll_event event = {.events = EPOLLIN};

	CHECK((set = epoll_create1(0)) >= 0);
	CHECK((counter = eventfd(0, EFD_NONBLOCK)) >= 0);
	CHECK((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&at, &size) == 0);
	CHECK((ends[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
	CHECK((ends[1] = accept(listener, NULL, NULL)) >= 0);
	close(listener);
	near = ends[0];
	far = ends[1];
	event.data.fd = counter;
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == 0);
	event.data.fd = near;
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, near, &event) == 0);
}

static int is_kept(int fd)
{
	return fd <= 2 || fd == set || fd == counter || fd == near || fd == far;
}

static void close_by_call(unsigned first, unsigned last)
{
	CHECK(close_range(first, last, 0) == 0);
}

static void close_by_number(unsigned first, unsigned last)
{
	CHECK(syscall(SYS_close_range, first, last, 0) == 0);
}

static void close_others(void (*range)(unsigned, unsigned))
{
	unsigned next = 3;

	for (int fd = 3; fd < FDS; fd++) {
		if (!is_kept(fd))
			continue;
		if ((unsigned)fd > next)
			range(next, fd - 1);
		next = fd + 1;
	}
	range(next, ~0u);
}

/* Other files of the program: connections, and one file at every other fd. */
static int connections[CONNECTIONS][2], file;

static void open_others(int everywhere)
{
	struct rlimit limit;

	for (int i = 0; i < CONNECTIONS; i++)
		CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, connections[i]) == 0);
	strcpy(strrchr(path, '.'), ".XXXXXX");
	CHECK((file = mkstemp(path)) >= 0);
	CHECK(write(file, "12345678", 8) == 8);
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	for (int fd = file + 1; everywhere && fd < FDS && (rlim_t)fd < limit.rlim_cur; fd++) {
		if (!is_kept(fd))
			CHECK(dup2(file, fd) == fd);
	}
}

static void check_others(int everywhere)
{
	char byte;
	struct stat found;
	struct rlimit limit;

	for (int i = 0; i < CONNECTIONS; i++) {
		for (int end = 0; end < 2; end++)
			FAILS(recv(connections[i][end], &byte, 1, 0), EAGAIN);
	}
	CHECK(fstat(file, &found) == 0 && found.st_size == 8);
	CHECK(lseek(file, 0, SEEK_CUR) == 8);
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	for (int fd = file + 1; everywhere && fd < FDS && (rlim_t)fd < limit.rlim_cur; fd++) {
		struct stat same;
		if (!is_kept(fd))
			CHECK(fstat(fd, &same) == 0 && same.st_ino == found.st_ino);
	}
	unlink(path);
}

static void *wait_in_set(void *ready)
{
	struct epoll_event event = {0};
	CHECK(epoll_wait(set, &event, 1, 60000) == 1);
	*(int *)ready = event.data.fd;
	return NULL;
}

static void *wait_in_poll(void *ready)
{
	struct pollfd fds[2] = {{counter, POLLIN, 0}, {near, POLLIN, 0}};
	CHECK(poll(fds, 2, 60000) == 1);
	*(int *)ready = fds[fds[0].revents == 0].fd;
	return NULL;
}

typedef void *waiter(void *);

static pthread_t begin(waiter *wait, int *ready)
{
	pthread_t thread;
	*ready = -1;
	CHECK(pthread_create(&thread, NULL, wait, ready) == 0);
	sleep_ms(20);
	return thread;
}

static void cause(int fd)
{
	uint64_t one = 1;
	if (fd == counter)
		CHECK(write(counter, &one, 8) == 8);
	else
		CHECK(write(far, "x", 1) == 1);
}

static void end(pthread_t thread, int fd, int *ready)
{
	uint64_t count;
	char byte;

	cause(fd);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(*ready == fd);
	if (fd == counter)
		CHECK(read(counter, &count, 8) == 8 && count == 1);
	else
		CHECK(read(near, &byte, 1) == 1);
}

static void check_waits(void)
{
	waiter *const waiters[] = {wait_in_set, wait_in_poll};
	int ready;

	for (int i = 0; i < 2; i++) {
		end(begin(waiters[i], &ready), counter, &ready);
		end(begin(waiters[i], &ready), near, &ready);
	}
}

static void in_child(void (*body)(int), int how)
{
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(300);
		make();
		body(how);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void (*const ways[])(unsigned, unsigned) = {close_by_call, close_by_number};

static void between_waits(int how)
{
	check_waits();
	close_others(ways[how / 2]);
	open_others(how % 2);
	check_waits();
	check_others(how % 2);
}

static void before_any_wait(int how)
{
	close_others(ways[how / 2]);
	open_others(how % 2);
	check_waits();
	check_others(how % 2);
}

static void while_threads_sleep(int how)
{
	waiter *const waiters[] = {wait_in_set, wait_in_poll};
	int ready;

	for (int i = 0; i < 2; i++) {
		for (int by = 0; by < 2; by++) {
			pthread_t thread = begin(waiters[i], &ready);
			close_others(ways[how / 2]);
			open_others(how % 2);
			end(thread, by ? near : counter, &ready);
			check_others(how % 2);
			close_others(ways[how / 2]);
		}
	}
	check_waits();
}

static void with_a_lowered_limit(int how)
{
	struct rlimit limit;

	check_waits();
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = 20;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	check_waits();
	close_others(ways[how / 2]);
	check_waits();
}

static void in_a_child_meanwhile(int how)
{
	int ready, status;
	pthread_t thread = begin(wait_in_set, &ready);
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		ways[how / 2](3, ~0u);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	end(thread, counter, &ready);
	check_waits();
}

int main(void)
{
	struct rlimit limit;

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	if (limit.rlim_cur > 4096) {
		limit.rlim_cur = 4096;
		CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	}
	for (int how = 0; how < 4; how++) {
		in_child(between_waits, how);
		in_child(before_any_wait, how);
		in_child(while_threads_sleep, how);
	}
	for (int how = 0; how < 4; how += 2) {
		in_child(with_a_lowered_limit, how);
		in_child(in_a_child_meanwhile, how);
	}
	return 0;
}
