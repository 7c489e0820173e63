/* The mask of one sleep unblocks several signals. All their handlers run, and afterwards the thread
 * has its former mask. */
#include "../c/check.h"

static int set, counter, pipes[2];
static const int SIGNALS[] = {SIGUSR1, SIGUSR2, SIGTERM};
static volatile int handled[65];

static void counts(int signal)
{
	handled[signal]++;
}

static int waits(const sigset_t *mask)
{
	struct epoll_event event;
	return epoll_pwait(set, &event, 1, 10000, mask);
}

static int polls(const sigset_t *mask)
{
	struct pollfd entry = {counter, POLLIN, 0};
	struct timespec limit = {10, 0};
	return ppoll(&entry, 1, &limit, mask);
}

static int polls_with_others(const sigset_t *mask)
{
	struct pollfd entries[2] = {{counter, POLLIN, 0}, {pipes[0], POLLIN, 0}};
	struct timespec limit = {10, 0};
	return ppoll(entries, 2, &limit, mask);
}

static int selects(const sigset_t *mask)
{
	struct timespec limit = {10, 0};
	fd_set in;
	FD_ZERO(&in);
	FD_SET(counter, &in), FD_SET(pipes[0], &in);
	return pselect((counter > pipes[0] ? counter : pipes[0]) + 1, &in, NULL, NULL, &limit, mask);
}

static void let_through(const char *name, int (*sleeps)(const sigset_t *), int flags)
{
	sigset_t mask, none, now;
	struct sigaction action;
	size_t at;
	memset(&action, 0, sizeof action);
	action.sa_handler = counts, action.sa_flags = flags;
	sigemptyset(&mask), sigemptyset(&none);
	for (at = 0; at < 3; at++) {
		CHECK(sigaction(SIGNALS[at], &action, NULL) == 0);
		sigaddset(&mask, SIGNALS[at]);
		handled[SIGNALS[at]] = 0;
	}
	CHECK(pthread_sigmask(SIG_SETMASK, &mask, NULL) == 0);
	for (at = 0; at < 3; at++)
		CHECK(raise(SIGNALS[at]) == 0);
	FAILS(sleeps(&none), EINTR);
	for (at = 0; at < 3; at++)
		CHECK(handled[SIGNALS[at]] == 1);
	CHECK(pthread_sigmask(SIG_SETMASK, &none, &now) == 0);
	for (at = 0; at < 3; at++) {
		CHECK(handled[SIGNALS[at]] == 1);
		CHECK(sigismember(&now, SIGNALS[at]) == 1);
	}
	printf("%s\n", name), fflush(stdout);
}

int main(void)
{
	static const int FLAGS[] = {0, SA_RESTART, SA_NODEFER};
	size_t at;
	alarm(200);
	CHECK(pipe(pipes) == 0);
	counter = eventfd(0, 0), set = epoll_create1(0);
	CHECK(counter >= 0 && set >= 0 && add(set, counter, EPOLLIN, 1) == 0);
	for (at = 0; at < 3; at++) {
		let_through("epoll_pwait", waits, FLAGS[at]);
		let_through("ppoll", polls, FLAGS[at]);
		let_through("ppoll with a pipe", polls_with_others, FLAGS[at]);
		let_through("pselect", selects, FLAGS[at]);
	}
	return 0;
}
