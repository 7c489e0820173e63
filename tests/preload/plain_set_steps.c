/* A handler adds an eventfd to the set that its thread is about to wait in, once after each
 * instruction of the call. The wait reports the eventfd unless it has ended before. */
#include "../c/check.h"

#ifdef __x86_64__
#include "steps.h"
#include <sys/timerfd.h>

static int set, counter, timer;
static long countdown;
static volatile int has_fired, must_report;

static void traps(int number, siginfo_t *info, void *context)
{
	int saved = errno;
	struct pollfd entry = {timer, POLLIN, 0};
	(void)number, (void)info;
	if (--countdown > 0)
		return;
	end_steps_of(context);
	has_fired = 1;
	CHECK(eventfd_write(counter, 1) == 0 && add(set, counter, EPOLLIN, 2) == 0);
	/* Before the timer expires only the eventfd ends the wait. */
	must_report = poll(&entry, 1, 0) == 0;
	errno = saved;
}

int main(void)
{
	struct sigaction action = {.sa_sigaction = traps, .sa_flags = SA_SIGINFO};
	struct itimerspec due = {.it_value = {0, 20000000}};
	struct epoll_event events[2];
	long at = 0;
	CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
	do {
		int count;
		set = epoll_create1(0), counter = eventfd(0, EFD_NONBLOCK);
		timer = timerfd_create(CLOCK_MONOTONIC, 0);
		CHECK(add(set, timer, EPOLLIN, 1) == 0);
		/* Resolves all symbols. */
		CHECK(epoll_wait(set, events, 2, 0) == 0);
		has_fired = must_report = 0, countdown = ++at;
		CHECK(timerfd_settime(timer, 0, &due, NULL) == 0);
		begin_steps();
		count = epoll_wait(set, events, 2, -1);
		end_steps();
		if (must_report && (count < 1 || events[count - 1].data.u64 != 2)) {
			fprintf(stderr, "lost at instruction %ld\n", at);
			return 1;
		}
		close(set), close(counter), close(timer);
	} while (has_fired && at < 500);
	return at > 5 ? 0 : 1;
}
#else
int main(void) { return 77; }
#endif
