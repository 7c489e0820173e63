/* A program sees its signal handlers as it has set them, and no trace of the functions that call
 * them. */
#include "../c/check.h"
#include <sys/syscall.h>
#include <sys/wait.h>

/* sigset and siginterrupt */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static volatile sig_atomic_t calls, code, depth, deepest;
static void *volatile got, *volatile context;

static int counter;

static void plain(int signal)
{
	CHECK(signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGALRM);
	calls++;
}

static void other(int signal)
{
	(void)signal;
	calls += 100;
}

static void informed(int signal, siginfo_t *info, void *where)
{
	CHECK(signal == SIGUSR1);
	code = info->si_code, got = info->si_value.sival_ptr, context = where;
	calls++;
}

static void raises_again(int signal)
{
	if (++depth > deepest)
		deepest = depth;
	if (++calls < 3)
		CHECK(raise(signal) == 0);
	depth--;
}

static struct sigaction set(int signal, void (*handler)(int), int flags)
{
	struct sigaction new, old;
	memset(&new, 0, sizeof new);
	memset(&old, 0x55, sizeof old);
	new.sa_handler = handler, new.sa_flags = flags;
	sigaddset(&new.sa_mask, SIGHUP);
	CHECK(sigaction(signal, &new, &old) == 0);
	return old;
}

#define OF_THE_PROGRAM ((int)(SA_SIGINFO | SA_RESETHAND | SA_NODEFER | SA_RESTART | SA_ONSTACK))

static int is_set(int signal, void (*handler)(int), int flags)
{
	struct sigaction now;
	CHECK(sigaction(signal, NULL, &now) == 0);
	return now.sa_handler == handler && (now.sa_flags & OF_THE_PROGRAM) == flags &&
	       sigismember(&now.sa_mask, SIGHUP) == 1 && sigismember(&now.sa_mask, SIGINT) == 0;
}

static void are_reported(void)
{
	static const int flags[] = {0, SA_RESTART, SA_NODEFER, SA_RESETHAND, SA_SIGINFO,
				    SA_ONSTACK, OF_THE_PROGRAM};
	size_t at;
	struct sigaction old = set(SIGUSR1, plain, 0), bad = old;
	CHECK(old.sa_handler == SIG_DFL);
	for (at = 0; at < sizeof flags / sizeof *flags; at++) {
		set(SIGUSR1, plain, flags[at]);
		CHECK(is_set(SIGUSR1, plain, flags[at]));
		old = set(SIGUSR1, other, 0);
		CHECK(old.sa_handler == plain && (old.sa_flags & OF_THE_PROGRAM) == flags[at]);
		CHECK(is_set(SIGUSR1, other, 0));
	}
	FAILS(sigaction(SIGKILL, &bad, NULL), EINVAL);
	FAILS(sigaction(65, &bad, NULL), EINVAL);
	FAILS(sigaction(0, &bad, NULL), EINVAL);
	FAILS(sigaction(-1, &bad, NULL), EINVAL);
	CHECK(is_set(SIGUSR1, other, 0));
	old = set(SIGUSR1, SIG_IGN, 0);
	CHECK(old.sa_handler == other);
	old = set(SIGUSR1, plain, 0);
	CHECK(old.sa_handler == SIG_IGN);
	CHECK(signal(SIGUSR1, other) == plain && signal(SIGUSR1, SIG_DFL) == other);
	CHECK(signal(SIGUSR1, plain) == SIG_DFL);
	CHECK(sigset(SIGUSR1, other) == plain && sigset(SIGUSR1, SIG_HOLD) == other);
	CHECK(sigset(SIGUSR1, plain) == SIG_HOLD && sigset(SIGUSR1, SIG_DFL) == plain);
	/* The handler of System V's function is called once, and does not block its signal. */
	CHECK(sysv_signal(SIGUSR1, plain) == SIG_DFL);
	CHECK(sigaction(SIGUSR1, NULL, &old) == 0 && old.sa_handler == plain);
	CHECK((old.sa_flags & OF_THE_PROGRAM) == (int)(SA_RESETHAND | SA_NODEFER));
	CHECK(sigismember(&old.sa_mask, SIGUSR1) == 0 && signal(SIGUSR1, SIG_DFL) == plain);
	CHECK(signal(0, plain) == SIG_ERR && errno == EINVAL);
	CHECK(signal(SIGKILL, plain) == SIG_ERR && errno == EINVAL);
}

static void raw_ones_are_reported(void)
{
	struct {
		void (*handler)(int);
		unsigned long flags;
		void *restorer;
		uint64_t mask;
	} old, new;
	set(SIGUSR1, plain, SA_RESTART);
	CHECK(syscall(SYS_rt_sigaction, SIGUSR1, NULL, &old, 8) == 0);
	CHECK(old.handler == plain && (old.flags & OF_THE_PROGRAM) == SA_RESTART);
	new = old, new.handler = other, new.flags |= SA_RESETHAND;
	CHECK(syscall(SYS_rt_sigaction, SIGUSR1, &new, &old, 8) == 0 && old.handler == plain);
	CHECK(is_set(SIGUSR1, other, SA_RESTART | SA_RESETHAND));
	calls = 0;
	CHECK(raise(SIGUSR1) == 0 && calls == 100);
	FAILS(syscall(SYS_rt_sigaction, SIGUSR1, &new, &old, 7), EINVAL);
	FAILS(syscall(SYS_rt_sigaction, SIGUSR1, nowhere(), NULL, 8), EFAULT);
}

static void are_called_as_they_ask(void)
{
	struct sigaction action;
	union sigval value = {.sival_ptr = &counter};
	stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
	int status;
	pid_t child;
	calls = 0;
	set(SIGUSR1, plain, SA_RESETHAND);
	CHECK(raise(SIGUSR1) == 0 && calls == 1);
	CHECK(sigaction(SIGUSR1, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		signal(SIGUSR1, SIG_DFL);
		set(SIGUSR1, plain, SA_RESETHAND);
		raise(SIGUSR1);
		raise(SIGUSR1);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1);
	calls = 0, deepest = 0;
	set(SIGUSR1, raises_again, 0);
	CHECK(raise(SIGUSR1) == 0 && calls == 3 && deepest == 1);
	calls = 0, deepest = 0;
	set(SIGUSR1, raises_again, SA_NODEFER);
	CHECK(raise(SIGUSR1) == 0 && calls == 3 && deepest == 3);
	memset(&action, 0, sizeof action);
	action.sa_sigaction = informed, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
	CHECK(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
	calls = 0;
	CHECK(sigqueue(getpid(), SIGUSR1, value) == 0 && calls == 1);
	CHECK(code == SI_QUEUE && got == &counter);
	CHECK((char *)context > (char *)stack.ss_sp);
	CHECK((char *)context < (char *)stack.ss_sp + stack.ss_size);
	stack.ss_flags = SS_DISABLE;
	CHECK(sigaltstack(&stack, NULL) == 0);
}

static pthread_t sleeper;
static volatile int is_over;

static void *interrupts(void *how)
{
	/* A signal before the call would not end it. */
	sleep_ms(50);
	wait_until_asleep(getpid());
	CHECK(pthread_kill(sleeper, SIGUSR1) == 0);
	sleep_ms(50);
	if (how != NULL) {
		uint64_t one = 1;
		CHECK(write(counter, &one, sizeof one) == sizeof one);
	}
	return NULL;
}

static void calls_begin_anew_or_not(void)
{
	pthread_t thread;
	uint64_t value;
	struct epoll_event event;
	struct pollfd entry;
	sigset_t blocked, before, none;
	int epfd = epoll_create1(0);
	counter = eventfd(0, 0), sleeper = pthread_self();
	CHECK(add(epfd, counter, EPOLLIN, 1) == 0);
	set(SIGUSR1, plain, SA_RESTART);
	calls = 0;
	CHECK(pthread_create(&thread, NULL, interrupts, &value) == 0);
	CHECK(read(counter, &value, sizeof value) == sizeof value && value == 1 && calls == 1);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(pthread_create(&thread, NULL, interrupts, NULL) == 0);
	FAILS(epoll_wait(epfd, &event, 1, -1), EINTR);
	CHECK(pthread_join(thread, NULL) == 0 && calls == 2);
	CHECK(signal(SIGUSR1, plain) == plain && siginterrupt(SIGUSR1, 1) == 0);
	CHECK(pthread_create(&thread, NULL, interrupts, NULL) == 0);
	FAILS(read(counter, &value, sizeof value), EINTR);
	CHECK(pthread_join(thread, NULL) == 0 && calls == 3);
	CHECK(signal(SIGUSR1, plain) == plain);
	CHECK(pthread_create(&thread, NULL, interrupts, NULL) == 0);
	FAILS(read(counter, &value, sizeof value), EINTR);
	CHECK(pthread_join(thread, NULL) == 0 && calls == 4);
	/* Unblocked only by the mask of the call. */
	sigemptyset(&blocked), sigemptyset(&none);
	sigaddset(&blocked, SIGUSR1);
	CHECK(pthread_sigmask(SIG_BLOCK, &blocked, &before) == 0);
	CHECK(raise(SIGUSR1) == 0 && calls == 4);
	FAILS(epoll_pwait(epfd, &event, 1, -1, &none), EINTR);
	CHECK(calls == 5);
	CHECK(raise(SIGUSR1) == 0);
	entry.fd = counter, entry.events = POLLIN;
	FAILS(ppoll(&entry, 1, NULL, &none), EINTR);
	CHECK(calls == 6 && raise(SIGUSR1) == 0 && calls == 6);
	CHECK(epoll_pwait(epfd, &event, 1, 10, &before) == -1 && errno == EINTR && calls == 7);
	CHECK(pthread_sigmask(SIG_BLOCK, NULL, &none) == 0 && sigismember(&none, SIGUSR1) == 1);
	CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0 && calls == 7);
	close(epfd), close(counter);
}

enum { QUEUED = 2000 };
static volatile sig_atomic_t values[QUEUED], got_values;

static void keeps(int signal, siginfo_t *info, void *where)
{
	(void)signal, (void)where;
	values[got_values++] = info->si_value.sival_int;
}

static void *queues(void *nothing)
{
	int at;
	for (at = 0; at < QUEUED; at++) {
		union sigval value = {.sival_int = at};
		CHECK(sigqueue(getpid(), SIGRTMIN, value) == 0);
	}
	is_over = 1;
	return nothing;
}

/* Queued signals are neither lost nor delayed. */
static void all_are_called_in_order(void)
{
	struct sigaction action;
	struct epoll_event event;
	sigset_t queued;
	pthread_t thread;
	int at, epfd = epoll_create1(0);
	counter = eventfd(1, 0);
	CHECK(add(epfd, counter, EPOLLIN, 1) == 0);
	memset(&action, 0, sizeof action);
	action.sa_sigaction = keeps, action.sa_flags = SA_SIGINFO;
	CHECK(sigaction(SIGRTMIN, &action, NULL) == 0);
	/* The sending thread blocks them. */
	sigemptyset(&queued), sigaddset(&queued, SIGRTMIN);
	CHECK(pthread_sigmask(SIG_BLOCK, &queued, NULL) == 0);
	CHECK(pthread_create(&thread, NULL, queues, NULL) == 0);
	CHECK(pthread_sigmask(SIG_UNBLOCK, &queued, NULL) == 0);
	while (!is_over)
		CHECK(epoll_wait(epfd, &event, 1, 0) == 1);
	CHECK(pthread_join(thread, NULL) == 0 && got_values == QUEUED);
	for (at = 0; at < QUEUED; at++)
		CHECK(values[at] == at);
	close(epfd), close(counter);
}

int main(void)
{
	alarm(200);
	are_reported();
	raw_ones_are_reported();
	are_called_as_they_ask();
	/* The library calls the handlers itself once there is a user-level object. */
	CHECK(signal(SIGUSR1, SIG_DFL) != SIG_ERR && eventfd(0, 0) >= 0);
	are_reported();
	raw_ones_are_reported();
	are_called_as_they_ask();
	calls_begin_anew_or_not();
	all_are_called_in_order();
	return 0;
}
