/* poll of user-level objects and kernel fds together, in calls that return at once. */
#include "check.h"

static volatile sig_atomic_t handled;

static void handler(int signal)
{
	(void)signal;
	handled++;
}

/* Fills each revents first, so that the call must overwrite it. */
static int polled(struct pollfd *entries, nfds_t count, int limit)
{
	nfds_t at;
	for (at = 0; at < count; at++)
		entries[at].revents = 0x7fff;
	return poll(entries, count, limit);
}

int main(void)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
	/* Periodic, because the first signal may come before the call. */
	struct itimerspec soon = {{0, 20000000}, {0, 1000000}};
	struct sigevent by_signal = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	struct pollfd entries[9];
	uint64_t count = 1;
	timer_t timer;
	int counter = eventfd(0, EFD_NONBLOCK), line[2], closed, at;
	sigset_t blocked, before;

	CHECK(counter >= 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, line) == 0);
	closed = dup(line[0]);
	CHECK(closed >= 0 && close(closed) == 0);

	/* No entry is ready. */
	entries[0] = (struct pollfd){counter, POLLIN, 0};
	entries[1] = (struct pollfd){line[0], POLLIN, 0};
	entries[2] = (struct pollfd){-1, POLLIN, 0};
	CHECK(polled(entries, 3, 0) == 0);
	CHECK(entries[0].revents == 0 && entries[1].revents == 0 && entries[2].revents == 0);
	CHECK(polled(entries, 3, 5) == 0);
	CHECK(entries[0].revents == 0 && entries[1].revents == 0 && entries[2].revents == 0);

	/* One is ready, then the other, then both. The fd behind a user-level object does not show its
	 * count. */
	CHECK(write(line[1], "x", 1) == 1);
	CHECK(polled(entries, 3, -1) == 1);
	CHECK(entries[0].revents == 0 && entries[1].revents == POLLIN && entries[2].revents == 0);
	CHECK(write(counter, &count, sizeof count) == sizeof count);
	CHECK(polled(entries, 3, -1) == 2);
	CHECK(entries[0].revents == POLLIN && entries[1].revents == POLLIN);
	CHECK(recv(line[0], &count, 1, 0) == 1);
	CHECK(polled(entries, 3, 1000) == 1);
	CHECK(entries[0].revents == POLLIN && entries[1].revents == 0 && entries[2].revents == 0);
	entries[0].events = entries[1].events = 0;
	CHECK(polled(entries, 3, 0) == 0 && entries[0].revents == 0 && entries[1].revents == 0);
	entries[0].events = entries[1].events = POLLIN | POLLOUT;
	CHECK(polled(entries, 3, -1) == 2);
	CHECK(entries[0].revents == (POLLIN | POLLOUT) && entries[1].revents == POLLOUT);

	/* Duplicate entries, a closed fd, the most entries that are polled without a wait queue, and one
	 * more. */
	for (at = 0; at < 9; at++)
		entries[at] = (struct pollfd){at % 3 == 0 ? counter : at % 3 == 1 ? line[0] : closed, POLLIN, 0};
	for (at = 8; at <= 9; at++) {
		CHECK(polled(entries, (nfds_t)at, -1) == (at == 8 ? 5 : 6));
		CHECK(entries[0].revents == POLLIN && entries[3].revents == POLLIN && entries[6].revents == POLLIN);
		CHECK(entries[1].revents == 0 && entries[4].revents == 0 && entries[7].revents == 0);
		CHECK(entries[2].revents == POLLNVAL && entries[5].revents == POLLNVAL);
	}

	/* A hang-up is reported although no event is requested. */
	CHECK(close(line[1]) == 0 && read(counter, &count, sizeof count) == sizeof count);
	entries[0].events = entries[1].events = 0;
	CHECK(polled(entries, 2, -1) == 1 && entries[0].revents == 0 && entries[1].revents == POLLHUP);
	CHECK(close(line[0]) == 0);

	/* A signal ends a call with no ready entry. The call has written the results. */
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, line) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(timer_create(CLOCK_MONOTONIC, &by_signal, &timer) == 0 && timer_settime(timer, 0, &soon, NULL) == 0);
	entries[0] = (struct pollfd){counter, POLLIN, 0};
	entries[1] = (struct pollfd){line[0], POLLIN, 0};
	FAILS(polled(entries, 2, 20000), EINTR);
	CHECK(timer_delete(timer) == 0);
	CHECK(handled > 0 && entries[0].revents == 0 && entries[1].revents == 0);

	/* A blocked signal does not end the call. */
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	CHECK(pthread_sigmask(SIG_BLOCK, &blocked, &before) == 0 && raise(SIGUSR1) == 0);
	handled = 0;
	CHECK(polled(entries, 2, 0) == 0 && polled(entries, 2, 5) == 0 && handled == 0);
	CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0 && handled == 1);
	return 0;
}
