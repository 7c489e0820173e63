/* A signal handler uses the set and the objects of the call that it interrupts, after each few
 * instructions of that call. A thread that waits for a lock of its own would hang. */
#include "../c/check.h"

#ifdef __x86_64__
#include "stepped_calls.h"

static volatile int handled;

static void traps(int signal, siginfo_t *info, void *context)
{
	int saved = errno;
	(void)signal, (void)info;
	if (--countdown <= 0) {
		union sigval value = {.sival_int = (int)countdown + 4711};
		CHECK(sigqueue(getpid(), SIGUSR1, value) == 0);
		has_fired = 1;
		end_steps_of(context);
	}
	errno = saved;
}

/* Makes all calls on all objects. */
static void uses(int signal, siginfo_t *info, void *context)
{
	int saved = errno, fd;
	uint64_t value = 1;
	struct epoll_event event = {EPOLLIN, {.u64 = 3}};
	struct pollfd entries[4] = {
		{counter, POLLIN, 0}, {set, POLLIN, 0}, {pipes[0], POLLIN, 0}, {outer, POLLIN, 0}};
	struct timeval now = {0, 0};
	sigset_t mask;
	fd_set in;
	CHECK(signal == SIGUSR1 && context != NULL);
	CHECK(info->si_code == SI_QUEUE && info->si_value.sival_int == 4711);
	CHECK(info->si_pid == getpid());
	CHECK(sigprocmask(SIG_SETMASK, NULL, &mask) == 0);
	CHECK(sigismember(&mask, SIGUSR1) == 1 && sigismember(&mask, SIGUSR2) == 1);
	CHECK(sigismember(&((ucontext_t *)context)->uc_sigmask, SIGUSR1) == 0);
	CHECK(write(counter, &value, sizeof value) == sizeof value);
	CHECK(epoll_wait(outer, &event, 1, 0) >= 0);
	CHECK(epoll_wait(set, &event, 1, 0) >= 0);
	CHECK(poll(entries, 4, 0) >= 0);
	CHECK(poll(entries, 2, 0) >= 0);
	FD_ZERO(&in);
	FD_SET(counter, &in), FD_SET(set, &in);
	CHECK(select((counter > set ? counter : set) + 1, &in, NULL, NULL, &now) >= 0);
	event.events = EPOLLIN, event.data.u64 = 4;
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, counter, &event) == 0 || errno == ENOENT);
	CHECK(add(set, pipes[0], EPOLLIN, 5) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, pipes[0], NULL) == 0);
	fd = eventfd(0, 0);
	CHECK(fd >= 0 && add(set, fd, EPOLLIN, 6) == 0 && close(fd) == 0);
	CHECK(read(counter, &value, sizeof value) == sizeof value);
	/* The rest of the value belongs to the interrupted code. */
	value--;
	CHECK(value == 0 || write(counter, &value, sizeof value) == sizeof value);
	handled++;
	errno = saved;
}

/* Three signals of a queued kind. */
static volatile int got[4], got_some;

static void counts(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	CHECK(got_some < 3);
	got[got_some++] = info->si_value.sival_int;
}

static void traps_to_queue(int signal, siginfo_t *info, void *context)
{
	int saved = errno, at;
	(void)signal, (void)info;
	if (--countdown <= 0) {
		for (at = 0; at < 3; at++) {
			union sigval value = {.sival_int = at};
			CHECK(pthread_sigqueue(pthread_self(), SIGRTMIN, value) == 0);
		}
		has_fired = 1;
		end_steps_of(context);
	}
	errno = saved;
}

/* EINTR is a valid result of a sleeping call that a handler interrupts. */
static int is_fine(int result)
{
	return result >= 0 || errno == EINTR;
}

static void waits_for_nothing(void)
{
	struct epoll_event event;
	CHECK(epoll_wait(set, &event, 1, 0) >= 0);
	CHECK(epoll_wait(outer, &event, 1, 0) >= 0);
}

static void waits(void)
{
	struct epoll_event event;
	CHECK(is_fine(epoll_wait(set, &event, 1, 1)));
}

static void waits_above(void)
{
	struct epoll_event event;
	CHECK(is_fine(epoll_wait(outer, &event, 1, 1)));
}

static void waits_with_a_mask(void)
{
	struct epoll_event event;
	sigset_t mask;
	sigemptyset(&mask);
	CHECK(is_fine(epoll_pwait(set, &event, 1, 1, &mask)));
}

static void polls(void)
{
	struct pollfd entries[2] = {{counter, POLLIN, 0}, {set, POLLIN, 0}};
	CHECK(is_fine(poll(entries, 2, 1)));
}

static void polls_with_others(void)
{
	struct pollfd entries[2] = {{set, POLLIN, 0}, {pipes[0], POLLIN, 0}};
	CHECK(is_fine(poll(entries, 2, 1)));
}

static void polls_with_a_mask(void)
{
	struct pollfd entries[2] = {{set, POLLIN, 0}, {pipes[0], POLLIN, 0}};
	struct timespec limit = {0, 1000000};
	sigset_t mask;
	sigemptyset(&mask);
	CHECK(is_fine(ppoll(entries, 2, &limit, &mask)));
}

static void selects(void)
{
	struct timeval limit = {0, 1000};
	fd_set in;
	FD_ZERO(&in);
	FD_SET(counter, &in), FD_SET(set, &in);
	CHECK(is_fine(select((counter > set ? counter : set) + 1, &in, NULL, NULL, &limit)));
}

static void makes_and_closes(void)
{
	int fd = eventfd(0, 0), other = epoll_create1(0), copy;
	CHECK(fd >= 0 && add(other, fd, EPOLLIN, 1) == 0);
	CHECK(add(other, counter, EPOLLIN, 1) == 0);
	copy = dup(counter);
	CHECK(copy >= 0 && dup2(fd, copy) == copy);
	CHECK(close(fd) == 0 && close(other) == 0 && close(copy) == 0);
}

static void interrupt_each(const char *name, void (*call)(void), long stride)
{
	long at;
	for (at = 1 + stride * part_of_today();; at += stride * PARTS) {
		handled = 0;
		if (!step_to(at, call))
			break;
		CHECK(handled == 1);
	}
	printf("%s: %s\n", name, at > stride * PARTS ? "interrupted" : "not interrupted"), fflush(stdout);
}

/* Queued signals keep their order. */
static void queue_in_each(void)
{
	struct sigaction action, before;
	long at;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = counts, action.sa_flags = SA_SIGINFO;
	CHECK(sigaction(SIGRTMIN, &action, NULL) == 0);
	sigaddset(&action.sa_mask, SIGRTMIN);
	action.sa_sigaction = traps_to_queue;
	CHECK(sigaction(SIGTRAP, &action, &before) == 0);
	for (at = 1 + 41 * part_of_today();; at += 41 * PARTS) {
		got_some = 0;
		if (!step_to(at, changes))
			break;
		CHECK(got_some == 3 && got[0] == 0 && got[1] == 1 && got[2] == 2);
	}
	CHECK(sigaction(SIGTRAP, &before, NULL) == 0);
}

int main(void)
{
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = traps;
	action.sa_flags = SA_SIGINFO;
	sigaddset(&action.sa_mask, SIGUSR1);
	CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
	action.sa_sigaction = uses;
	sigemptyset(&action.sa_mask);
	sigaddset(&action.sa_mask, SIGUSR2);
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	make_objects();
	alarm(1500);
	queue_in_each();
	interrupt_each("read, write", reads_and_writes, 7);
	interrupt_each("epoll_ctl", changes, 13);
	interrupt_each("epoll_wait at once", waits_for_nothing, 13);
	interrupt_each("epoll_wait", waits, 13);
	interrupt_each("epoll_wait above", waits_above, 13);
	interrupt_each("epoll_pwait", waits_with_a_mask, 13);
	interrupt_each("poll", polls, 13);
	interrupt_each("poll with a pipe", polls_with_others, 13);
	interrupt_each("ppoll", polls_with_a_mask, 13);
	interrupt_each("select", selects, 13);
	interrupt_each("eventfd, dup, close", makes_and_closes, 61);
	return 0;
}
#else
int main(void)
{
	return 77;
}
#endif
