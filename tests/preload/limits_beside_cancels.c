/* Every call with a time limit, in a thread that has disabled cancellation and is cancelled again and
 * again meanwhile: the limit does not start over, and the call does not fail. */
#include "../c/check.h"
#include <sys/timerfd.h>

enum { LIMIT_MS = 400, EACH_MS = 40 };

static int counter, kernels, set, mixed, outer, pair[2];
static volatile int is_waiting;

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int in_set(void)
{
	struct epoll_event event;
	return epoll_wait(set, &event, 1, LIMIT_MS);
}

static int in_mixed_set(void)
{
	struct epoll_event event;
	return epoll_wait(mixed, &event, 1, LIMIT_MS);
}

static int in_outer_set(void)
{
	struct epoll_event event;
	return epoll_wait(outer, &event, 1, LIMIT_MS);
}

static int in_set_with_mask(void)
{
	struct epoll_event event;
	sigset_t mask;
	sigfillset(&mask);
	return epoll_pwait(mixed, &event, 1, LIMIT_MS, &mask);
}

static int in_set_by_timespec(void)
{
	struct epoll_event event;
	struct timespec limit = {0, LIMIT_MS * 1000000L};
	return epoll_pwait2(set, &event, 1, &limit, NULL);
}

static int in_poll(void)
{
	struct pollfd entry = {counter, POLLIN, 0};
	return poll(&entry, 1, LIMIT_MS);
}

static int in_mixed_poll(void)
{
	struct pollfd entries[] = {{counter, POLLIN, 0}, {kernels, POLLIN, 0}};
	return poll(entries, 2, LIMIT_MS);
}

static int in_ppoll(void)
{
	struct pollfd entries[] = {{counter, POLLIN, 0}, {kernels, POLLIN, 0}, {mixed, POLLIN, 0}};
	struct timespec limit = {0, LIMIT_MS * 1000000L};
	sigset_t mask;
	sigfillset(&mask);
	return ppoll(entries, 3, &limit, &mask);
}

static int in_select(void)
{
	struct timeval limit = {0, LIMIT_MS * 1000};
	fd_set in;
	FD_ZERO(&in);
	FD_SET(counter, &in);
	return select(counter + 1, &in, NULL, NULL, &limit);
}

static int in_pselect(void)
{
	struct timespec limit = {0, LIMIT_MS * 1000000L};
	fd_set in;
	FD_ZERO(&in);
	FD_SET(counter, &in);
	FD_SET(kernels, &in);
	return pselect((counter > kernels ? counter : kernels) + 1, &in, NULL, NULL, &limit, NULL);
}

/* The limit of the socket. */
static int in_recv(void)
{
	char byte;
	return recv(pair[0], &byte, 1, 0) == -1 && errno == EAGAIN ? 0 : 1;
}

static const struct wait {
	const char *name;
	int (*waits)(void);
} all[] = {
	{"epoll_wait", in_set}, {"epoll_wait, mixed", in_mixed_set}, {"epoll_wait, nested", in_outer_set},
	{"epoll_pwait", in_set_with_mask}, {"epoll_pwait2", in_set_by_timespec}, {"poll", in_poll},
	{"poll, mixed", in_mixed_poll}, {"ppoll", in_ppoll}, {"select", in_select}, {"pselect", in_pselect},
	{"recv", in_recv},
};

static void *waits(void *argument)
{
	const struct wait *wait = argument;
	double begun, took;
	int found, error;
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
	is_waiting = 1;
	begun = now();
	found = wait->waits();
	error = errno, took = now() - begun;
	is_waiting = 0;
	if (found != 0 || took > 30 || took < (LIMIT_MS - 50) / 1e3) {
		fprintf(stderr, "%s: %d (errno %d) after %.3f s\n", wait->name, found, error, took);
		exit(1);
	}
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL) == 0);
	pthread_testcancel();
	return argument;
}

int main(void)
{
	struct timeval limit = {0, LIMIT_MS * 1000};
	unsigned at;
	alarm(200);
	CHECK((counter = eventfd(0, 0)) >= 0 && (kernels = timerfd_create(CLOCK_MONOTONIC, 0)) >= 0);
	CHECK((set = epoll_create1(0)) >= 0 && (mixed = epoll_create1(0)) >= 0 && (outer = epoll_create1(0)) >= 0);
	CHECK(add(set, counter, EPOLLIN, 1) == 0 && add(mixed, counter, EPOLLIN, 1) == 0);
	CHECK(add(mixed, kernels, EPOLLIN, 2) == 0 && add(outer, mixed, EPOLLIN, 3) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
	for (at = 0; at < sizeof all / sizeof *all; at++) {
		pthread_t thread;
		void *result;
		double begun = now();
		is_waiting = 0;
		CHECK(pthread_create(&thread, NULL, waits, (void *)(uintptr_t)&all[at]) == 0);
		while (!is_waiting)
			sleep_ms(1);
		while (is_waiting && now() - begun < 40) {
			sleep_ms(EACH_MS);
			if (is_waiting)
				CHECK(pthread_cancel(thread) == 0);
		}
		CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	}
	return 0;
}
