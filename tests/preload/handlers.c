/* A signal handler uses the eventfd and the set that its thread is using. */
#include "../c/check.h"
#include <sched.h>
#include <sys/wait.h>

enum { ROUNDS = 3000 };
static int counter, set, others[2];
static volatile sig_atomic_t sent;

static void writes(int signal)
{
	int saved = errno;
	uint64_t one = 1;
	(void)signal;
	CHECK(write(counter, &one, sizeof one) == sizeof one);
	sent++;
	errno = saved;
}

/* Async-signal-safe calls by POSIX, and epoll_wait, which is one in practice. */
static void uses(int signal)
{
	int saved = errno;
	uint64_t value = 1;
	struct pollfd entries[2];
	struct epoll_event event;
	struct timeval now = {0, 0};
	fd_set in;
	int copy;
	(void)signal;
	CHECK(write(counter, &value, sizeof value) == sizeof value);
	entries[0].fd = counter, entries[0].events = POLLIN;
	entries[1].fd = others[0], entries[1].events = POLLIN;
	CHECK(poll(entries, 2, 0) >= 1);
	FD_ZERO(&in);
	FD_SET(counter, &in);
	CHECK(select(counter + 1, &in, NULL, NULL, &now) == 1);
	CHECK(epoll_wait(set, &event, 1, 0) >= 0);
	CHECK(read(counter, &value, sizeof value) == sizeof value);
	CHECK(write(others[1], "x", 1) == 1 && read(others[0], &value, 1) == 1);
	copy = dup(others[0]);
	CHECK(copy >= 0 && close(copy) == 0);
	sent++;
	errno = saved;
}

static pthread_t target;
static volatile int is_over;

/* Sends signals as fast as they are handled. Most arrive as a system call returns. */
static void *sends(void *nothing)
{
	while (!is_over) {
		int before = sent;
		CHECK(pthread_kill(target, SIGUSR1) == 0);
		while (sent == before && !is_over)
			sched_yield();
	}
	return nothing;
}

static void during(void (*uses)(void), void (*handler)(int))
{
	struct sigaction action;
	pthread_t sender;
	memset(&action, 0, sizeof action);
	action.sa_handler = handler;
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	sent = 0, is_over = 0, target = pthread_self();
	CHECK(pthread_create(&sender, NULL, sends, NULL) == 0);
	uses();
	is_over = 1;
	CHECK(pthread_join(sender, NULL) == 0);
}

/* Changes wait queues, sleeps and polls. */
static void while_changing(void)
{
	struct epoll_event event;
	struct pollfd entry;
	uint64_t value;
	while (sent < ROUNDS) {
		entry.fd = counter, entry.events = POLLIN;
		CHECK(epoll_ctl(set, EPOLL_CTL_DEL, counter, NULL) == 0);
		CHECK(add(set, counter, EPOLLIN | EPOLLET, 1) == 0);
		event.events = EPOLLIN, event.data.u64 = 2;
		CHECK(epoll_ctl(set, EPOLL_CTL_MOD, counter, &event) == 0);
		CHECK(epoll_wait(set, &event, 1, 0) >= 0);
		CHECK(poll(&entry, 1, 0) >= 0 || errno == EINTR);
		CHECK(poll(&entry, 1, 10000) == 1 || errno == EINTR);
		CHECK(epoll_wait(set, &event, 1, 10000) >= 0 || errno == EINTR);
		CHECK(read(counter, &value, sizeof value) == sizeof value || errno == EAGAIN);
	}
}

/* Opens, closes and demotes objects. The objects of the handler stay. */
static void while_fds_change(void)
{
	int fd, status, rounds = 0, copy = dup(counter);
	pid_t child;
	sigset_t all, before;
	CHECK(copy >= 0);
	while (sent < ROUNDS) {
		fd = eventfd(1, 0);
		CHECK(dup2(counter, fd) == fd);
		CHECK(close(fd) == 0);
		CHECK(dup2(copy, counter) == counter);
		if (++rounds % 10)
			continue;
		child = fork();
		CHECK(child >= 0);
		if (child == 0)
			_exit(0);
		while (waitpid(child, &status, 0) == -1)
			CHECK(errno == EINTR);
		/* The object was demoted: makes another one. */
		sigfillset(&all);
		CHECK(sigprocmask(SIG_SETMASK, &all, &before) == 0);
		close(counter), close(set), close(copy);
		counter = eventfd(0, EFD_NONBLOCK);
		set = epoll_create1(0), copy = dup(counter);
		CHECK(add(set, counter, EPOLLIN, 1) == 0);
		CHECK(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
	}
	close(copy);
}

int main(void)
{
	counter = eventfd(0, EFD_NONBLOCK);
	set = epoll_create1(0);
	CHECK(pipe(others) == 0);
	CHECK(add(set, counter, EPOLLIN | EPOLLET, 1) == 0);
	during(while_changing, writes);
	during(while_changing, uses);
	during(while_fds_change, writes);
	during(while_fds_change, uses);
	return 0;
}
