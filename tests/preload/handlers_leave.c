/* Signal handlers leave a call by siglongjmp, while it sleeps or changes an object. The call leaves
 * nothing behind. */
#include "sleeping_calls.h"
#include <setjmp.h>

enum { ROUNDS = 200 };
static int ready, other, outer;
static sigjmp_buf before;
static volatile sig_atomic_t may_leave;
static pthread_t target;
static volatile int is_over;

static void leaves(int signal)
{
	(void)signal;
	if (may_leave) {
		may_leave = 0;
		siglongjmp(before, 1);
	}
}

static void waits_above(void)
{
	struct epoll_event event;
	epoll_wait(outer, &event, 1, 10000);
}

static void polls(void)
{
	struct pollfd entries[12];
	int at;
	for (at = 0; at < 12; at++)
		entries[at].fd = counter, entries[at].events = POLLIN;
	poll(entries, 12, -1);
}

static void reads_a_list(void)
{
	uint64_t value;
	struct iovec list = {&value, sizeof value};
	CHECK(readv(counter, &list, 1) == -1);
}

/* Makes calls that return at once, repeatedly. */
static void works(void)
{
	struct epoll_event event = {EPOLLIN, {.u64 = 3}};
	struct pollfd entry = {set, POLLIN, 0};
	epoll_ctl(set, EPOLL_CTL_ADD, ready, &event);
	epoll_wait(set, &event, 1, 0);
	epoll_wait(outer, &event, 1, 0);
	poll(&entry, 1, 0);
	dup2(counter, other);
	epoll_ctl(set, EPOLL_CTL_DEL, ready, NULL);
	dup2(ready, other);
}

static void *sends(void *nothing)
{
	struct timespec pause = {0, 200000};
	while (!is_over) {
		nanosleep(&pause, NULL);
		CHECK(pthread_kill(target, SIGUSR1) == 0);
	}
	return nothing;
}

static void leave(const char *name, void (*call)(void), int flags, int rounds)
{
	struct sigaction action;
	struct epoll_event event;
	pthread_t sender;
	uint64_t value = 1;
	volatile int round;
	memset(&action, 0, sizeof action);
	action.sa_handler = leaves;
	action.sa_flags = flags;
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	is_over = 0, target = pthread_self();
	CHECK(pthread_create(&sender, NULL, sends, NULL) == 0);
	for (round = 0; round < rounds; round++)
		if (sigsetjmp(before, 1) == 0) {
			may_leave = 1;
			for (;;)
				call();
		}
	is_over = 1;
	CHECK(pthread_join(sender, NULL) == 0);
	epoll_ctl(set, EPOLL_CTL_DEL, ready, NULL);
	/* This write uses all registrations, including any that an abandoned call has left. */
	CHECK(write(counter, &value, sizeof value) == sizeof value);
	CHECK(epoll_wait(set, &event, 1, 10000) == 1 && event.data.u64 == 1);
	CHECK(epoll_wait(outer, &event, 1, 10000) == 1 && event.data.u64 == 2);
	CHECK(read(counter, &value, sizeof value) == sizeof value && value == 1);
	CHECK(epoll_wait(set, &event, 1, 0) == 0);
	CHECK(write(pair[1], "x", 1) == 1 && read(pair[0], &value, 1) == 1);
	CHECK(write(pipes[1], "x", 1) == 1 && read(pipes[0], &value, 1) == 1);
	printf("%s\n", name), fflush(stdout);
}

static void anew(void)
{
	ready = eventfd(1, 0), other = dup(ready);
	counter = eventfd(0, 0), set = epoll_create1(0), outer = epoll_create1(0);
	CHECK(pipe(pipes) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(add(set, counter, EPOLLIN, 1) == 0 && add(outer, set, EPOLLIN, 2) == 0);
}

/* Closes objects. An abandoned call must not keep any of them open. */
static void close_all(void)
{
	char byte;
	CHECK(close(pipes[1]) == 0 && read(pipes[0], &byte, 1) == 0);
	CHECK(close(pair[1]) == 0 && read(pair[0], &byte, 1) == 0);
	CHECK(close(pipes[0]) == 0 && close(pair[0]) == 0);
	CHECK(close(ready) == 0 && close(other) == 0);
	CHECK(close(outer) == 0 && close(set) == 0 && close(counter) == 0);
}

int main(void)
{
	int flags;
	alarm(200);
	for (flags = 0; flags != -1; flags = flags == 0 ? SA_RESTART : -1) {
		anew();
		leave("epoll_wait", waits, flags, ROUNDS);
		leave("epoll_wait above", waits_above, flags, ROUNDS);
		leave("epoll_pwait", waits_with_a_mask, flags, ROUNDS);
		leave("poll", polls, flags, ROUNDS);
		leave("ppoll", polls_with_a_mask, flags, ROUNDS);
		leave("select", selects, flags, ROUNDS);
		leave("read", reads, flags, ROUNDS);
		leave("readv", reads_a_list, flags, ROUNDS);
		leave("read of a pipe", reads_a_pipe, flags, ROUNDS);
		leave("recv", receives, flags, ROUNDS);
		leave("what does not sleep", works, flags, ROUNDS);
		close_all();
	}
	return 0;
}
