/* A signal handler is delayed until the end of a call, and a second signal, whose handler makes
 * calls itself, comes at each instruction from there on. Both handlers run once, and no signal
 * stays blocked. */
#include "../c/check.h"

#ifdef __x86_64__
#include "steps.h"

static int counter, set;
static long step, first, second;
static volatile int has_fired, handled[2];

static void traps(int signal, siginfo_t *info, void *context)
{
	int saved = errno;
	(void)signal, (void)info;
	step++;
	if (step == first)
		CHECK(pthread_kill(pthread_self(), SIGUSR1) == 0);
	if (step == second) {
		CHECK(pthread_kill(pthread_self(), SIGUSR2) == 0);
		has_fired = 1;
		end_steps_of(context);
	}
	errno = saved;
}

static void counts(int signal)
{
	(void)signal;
	handled[0]++;
}

static void uses(int signal)
{
	int saved = errno, copy;
	struct epoll_event event = {EPOLLIN, {.u64 = 1}};
	(void)signal;
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, counter, &event) == 0);
	copy = dup(counter);
	CHECK(copy >= 0 && close(copy) == 0);
	handled[1]++;
	errno = saved;
}

static void reads_and_writes(void)
{
	uint64_t value = 1;
	CHECK(write(counter, &value, sizeof value) == sizeof value);
	CHECK(read(counter, &value, sizeof value) == sizeof value);
}

/* Returns whether there is an instruction at which the second signal comes. */
static int interrupt_twice(void)
{
	sigset_t now;
	step = has_fired = handled[0] = handled[1] = 0;
	begin_steps();
	reads_and_writes();
	end_steps();
	if (!has_fired)
		return 0;
	CHECK(handled[0] == 1 && handled[1] == 1);
	CHECK(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0);
	CHECK(!sigismember(&now, SIGUSR1) && !sigismember(&now, SIGUSR2));
	return 1;
}

int main(void)
{
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = traps;
	action.sa_flags = SA_SIGINFO;
	sigaddset(&action.sa_mask, SIGUSR1), sigaddset(&action.sa_mask, SIGUSR2);
	CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
	CHECK(signal(SIGUSR1, counts) != SIG_ERR && signal(SIGUSR2, uses) != SIG_ERR);
	counter = eventfd(0, 0), set = epoll_create1(0);
	CHECK(counter >= 0 && set >= 0 && add(set, counter, EPOLLIN, 1) == 0);
	alarm(1500);
	for (first = 1;; first += 124) {
		for (second = first + 1 + part_of_today(); interrupt_twice(); second += PARTS)
			;
		if (second <= first + PARTS)
			break;
	}
	return 0;
}
#else
int main(void)
{
	return 77;
}
#endif
