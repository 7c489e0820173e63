/* A timer sends a signal every 50 microseconds, and the handler interrupts every kind of blocking
 * call, with and without SA_RESTART. Each unit that is sent is received once. A call that a handler
 * ends fails with EINTR; with SA_RESTART no read or write does. */
#include "check.h"
#include <sys/time.h>

enum { UNITS = 2000 };

static int restarts;
static volatile sig_atomic_t handled;
static int counter, pipes[2], sockets[2], empty, many;

static void handler(int signal)
{
	(void)signal;
	handled++;
}

static void storms(void)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = restarts ? SA_RESTART : 0};
	struct itimerval often = {{0, 50}, {0, 50}};
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
}

static void ends(void)
{
	struct itimerval never = {{0, 0}, {0, 0}};
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	CHECK(handled > 0);
}

/* Repeats a call that a handler has ended. */
#define AGAIN(result, call)                                                                   \
	do {                                                                                  \
		(result) = (call);                                                            \
		CHECK((result) >= 0 || (errno == EINTR && !restarts));                        \
	} while ((result) < 0)

static void *sends_to_the_counter(void *nothing)
{
	uint64_t one = 1;
	long result;
	int unit;
	for (unit = 0; unit < UNITS; unit++) {
		AGAIN(result, write(counter, &one, sizeof one));
		CHECK(result == sizeof one);
	}
	return nothing;
}

/* Blocks at a full pipe and a full socket alternately: each write is larger than the buffer. */
static void *sends_bytes(void *to)
{
	static const char bytes[3000];
	long left = (long)UNITS * (long)sizeof bytes, result;
	while (left > 0) {
		AGAIN(result, write(*(int *)to, bytes, left < (long)sizeof bytes ? (size_t)left : sizeof bytes));
		left -= result;
	}
	return to;
}

static void *waits_in_sets(void *nothing)
{
	struct epoll_event event;
	uint64_t value;
	int received = 0;
	while (received < UNITS) {
		/* A handler ends this call with any flags. */
		int found = epoll_wait(many, &event, 1, -1);
		CHECK(found == 1 || (found < 0 && errno == EINTR));
		if (found == 1 && read(counter, &value, sizeof value) == sizeof value)
			received += (int)value;
	}
	CHECK(received == UNITS);
	return nothing;
}

static void *receives_bytes(void *from)
{
	char bytes[4096];
	long left = (long)UNITS * 3000, result;
	while (left > 0) {
		AGAIN(result, read(*(int *)from, bytes, sizeof bytes));
		CHECK(result > 0 && result <= left);
		left -= result;
	}
	return from;
}

/* Checks that only a handler ends these calls before their limit. */
static void *polls_in_vain(void *nothing)
{
	struct pollfd entries[] = {{empty, POLLIN, 0}, {pipes[1], 0, 0}};
	fd_set set;
	int round;
	for (round = 0; round < 200; round++) {
		struct timeval limit = {0, 500};
		int found = poll(entries, 2, 1);
		CHECK(found == 0 || (found < 0 && errno == EINTR));
		FD_ZERO(&set);
		FD_SET(empty, &set);
		found = select(empty + 1, &set, NULL, NULL, &limit);
		CHECK(found == 0 || (found < 0 && errno == EINTR));
	}
	return nothing;
}

int main(void)
{
	for (restarts = 0; restarts < 2; restarts++) {
		pthread_t threads[8];
		struct epoll_event event;
		uint64_t value;
		int at = 0, thread;
		char byte;
		counter = eventfd(0, EFD_NONBLOCK), empty = eventfd(0, 0), many = epoll_create1(0);
		CHECK(counter >= 0 && empty >= 0 && many >= 0 && pipe(pipes) == 0);
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
		CHECK(add(many, counter, EPOLLIN, 1) == 0);
		handled = 0;
		storms();
		CHECK(pthread_create(&threads[at++], NULL, waits_in_sets, NULL) == 0);
		CHECK(pthread_create(&threads[at++], NULL, receives_bytes, &pipes[0]) == 0);
		CHECK(pthread_create(&threads[at++], NULL, receives_bytes, &sockets[0]) == 0);
		CHECK(pthread_create(&threads[at++], NULL, polls_in_vain, NULL) == 0);
		CHECK(pthread_create(&threads[at++], NULL, sends_to_the_counter, NULL) == 0);
		CHECK(pthread_create(&threads[at++], NULL, sends_bytes, &pipes[1]) == 0);
		CHECK(pthread_create(&threads[at++], NULL, sends_bytes, &sockets[1]) == 0);
		for (thread = 0; thread < at; thread++)
			CHECK(pthread_join(threads[thread], NULL) == 0);
		ends();
		CHECK(read(counter, &value, sizeof value) == -1 && errno == EAGAIN);
		CHECK(epoll_wait(many, &event, 1, 0) == 0);
		CHECK(fcntl(pipes[0], F_SETFL, O_NONBLOCK) == 0);
		CHECK(read(pipes[0], &byte, 1) == -1 && errno == EAGAIN);
		close(counter), close(empty), close(many), close(pipes[0]), close(pipes[1]);
		close(sockets[0]), close(sockets[1]);
	}
	return 0;
}
