/* A handler adds an eventfd to the set that its thread is about to poll, once after each instruction of
 * the call, and a program that is not there is executed. The call reports the set unless it has ended
 * before. */
#include "../c/check.h"

#ifdef __x86_64__
#include "steps.h"
#include <sys/timerfd.h>
#include <sys/wait.h>

enum { OVER, AGAIN, LOST, SKIPPED };
static int set, timer;
static long countdown;
static volatile int has_fired, must_report;

static void traps(int number, siginfo_t *info, void *context)
{
	char *none[] = {NULL};
	int saved = errno, counter;
	uint64_t expirations;
	(void)number, (void)info;
	if (--countdown > 0)
		return;
	end_steps_of(context);
	has_fired = 1;
	/* Before the timer expires only the eventfd ends the wait. */
	must_report = read(timer, &expirations, sizeof expirations) == -1;
	counter = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
	CHECK(counter >= 0 && add(set, counter, EPOLLIN, 1) == 0);
	CHECK(execve("/nonexistent", none, none) == -1);
	errno = saved;
}

/* The process has no other eventfd. */
static int interrupt_at(long at)
{
	struct itimerspec due = {.it_value = {0, 5000000}};
	struct pollfd entry;
	int count;
	set = epoll_create1(EPOLL_CLOEXEC);
	timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
	entry = (struct pollfd){set, POLLIN, 0};
	countdown = at;
	CHECK(timerfd_settime(timer, 0, &due, NULL) == 0);
	begin_steps();
	count = poll(&entry, 1, 200);
	end_steps();
	if (!must_report)
		return OVER;
	return count == 1 && entry.revents == POLLIN ? AGAIN : LOST;
}

static int outcome_at(long at)
{
	int status;
	pid_t child = fork();
	if (child == 0)
		_exit(interrupt_at(at));
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
	return WEXITSTATUS(status);
}

int main(void)
{
	struct sigaction action = {.sa_sigaction = traps, .sa_flags = SA_SIGINFO};
	char *none[] = {NULL};
	long at = 0;
	int outcome, tries;
	CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
	/* Resolves all symbols. */
	CHECK(poll(NULL, 0, 0) == 0 && execve("/nonexistent", none, none) == -1);
	do {
		at++;
		/* On a busy machine the timer may expire before the handler runs. */
		for (tries = 0, outcome = OVER; outcome == OVER && tries < 5; tries++)
			outcome = outcome_at(at);
		if (outcome == LOST) {
			fprintf(stderr, "lost at instruction %ld\n", at);
			return 1;
		}
	} while (outcome == AGAIN && at < 20000);
	return outcome == OVER && at > 5 ? 0 : 1;
}
#else
int main(void) { return 77; }
#endif
