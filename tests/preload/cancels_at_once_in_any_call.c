/* A thread with the type PTHREAD_CANCEL_ASYNCHRONOUS is cancelled in calls that are no cancellation
 * points. It ends, and other threads still make the same calls on the same objects. POSIX promises
 * this for three functions only, but the kernel's calls allow it. */
#include "../c/check.h"
#include <sys/syscall.h>

enum { TIMES = 80 };

static int counter, set, ends[2], pair[2];
static volatile int has_begun;

static void duplicate(void)
{
	close(dup(counter));
	dup2(counter, 300);
	dup3(counter, 301, O_CLOEXEC);
	close(fcntl(counter, F_DUPFD_CLOEXEC, 100));
}

static void make_counter(void)
{
	close(eventfd(0, 0));
}

static void make_set(void)
{
	int made = epoll_create1(EPOLL_CLOEXEC), copy = dup(made);
	close(made);
	close(copy);
}

static void make_pipe(void)
{
	int made[2];
	if (pipe(made) == 0)
		close(made[0]), close(made[1]);
}

static void make_pair(void)
{
	int made[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, made) == 0)
		shutdown(made[0], SHUT_RDWR), close(made[0]), close(made[1]);
}

static void change_set(void)
{
	add(set, counter, EPOLLIN, 1);
	add(set, ends[0], EPOLLIN, 2);
	epoll_ctl(set, EPOLL_CTL_DEL, counter, NULL);
	epoll_ctl(set, EPOLL_CTL_DEL, ends[0], NULL);
}

static void control(void)
{
	int flag = 1;
	socklen_t size = sizeof flag;
	fcntl(counter, F_SETFL, O_NONBLOCK | fcntl(counter, F_GETFL));
	ioctl(ends[0], FIONREAD, &flag);
	getsockopt(pair[0], SOL_SOCKET, SO_TYPE, &flag, &size);
}

static void set_action(void)
{
	struct sigaction action;
	sigaction(SIGUSR1, NULL, &action);
	sigaction(SIGUSR1, &action, NULL);
	signal(SIGUSR2, SIG_IGN);
}

static void by_number(void)
{
	close((int)syscall(SYS_eventfd2, 0, 0));
	close((int)syscall(SYS_dup, counter));
	syscall(SYS_fcntl, counter, F_GETFL);
}

/* This call blocks. Natively it is no cancellation point for other threads. */
static void read_by_number(void)
{
	uint64_t value;
	fcntl(counter, F_SETFL, 0);
	syscall(SYS_read, counter, &value, sizeof value);
}

/* POSIX promises this one. */
static void cancel(void)
{
	pthread_cancel(pthread_self());
}

/* The program would inherit all objects. */
static void execute(void)
{
	char *none[] = {NULL};
	int made = eventfd(0, 0);
	execve("/no/such/program", none, none);
	close(made);
}

static void (*const calls[])(void) = {
	duplicate, make_counter, make_set, make_pipe, make_pair, change_set,
	control, set_action, by_number, read_by_number, cancel, execute,
};

static void *repeats(void *call)
{
	CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
	has_begun = 1;
	for (;;)
		(*(void (**)(void))call)();
	return NULL;
}

/* A call within a call that was interrupted, and no cancellation point. */
static void on_signal(int signal)
{
	(void)signal;
	CHECK(fcntl(counter, F_GETFL) != -1);
}

/* A lock that the cancelled thread held would be met here. */
static void use_all(void)
{
	uint64_t value = 1;
	struct epoll_event event;
	int from;
	for (from = 0; from < (int)(sizeof calls / sizeof *calls) - 3; from++)
		calls[from]();
	CHECK(fcntl(counter, F_SETFL, O_NONBLOCK) == 0);
	CHECK(write(counter, &value, sizeof value) == 8);
	CHECK(add(set, counter, EPOLLIN, 1) == 0 || errno == EEXIST);
	CHECK(epoll_wait(set, &event, 1, 0) == 1 && event.data.u64 == 1);
	CHECK(read(counter, &value, sizeof value) == 8 && value == 1);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, counter, NULL) == 0);
	/* The thread may have left fds open. */
	CHECK(close_range(302, ~0u, 0) == 0);
}

static void cancel_in(const void *call, int time)
{
	struct timespec moment = {0, time * 7919 % 300000};
	pthread_t thread;
	void *result;
	has_begun = 0;
	CHECK(pthread_create(&thread, NULL, repeats, (void *)(uintptr_t)call) == 0);
	while (!has_begun)
		sched_yield();
	nanosleep(&moment, NULL);
	CHECK(pthread_kill(thread, SIGUSR1) == 0);
	nanosleep(&moment, NULL);
	CHECK(pthread_cancel(thread) == 0);
	CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	use_all();
}

int main(void)
{
	unsigned at;
	int time;
	alarm(200);
	CHECK(signal(SIGUSR1, on_signal) != SIG_ERR);
	CHECK((counter = eventfd(0, EFD_NONBLOCK)) >= 0 && (set = epoll_create1(0)) >= 0);
	CHECK(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	for (at = 0; at < sizeof calls / sizeof *calls; at++)
		for (time = 0; time < TIMES; time++)
			cancel_in(&calls[at], time);
	return 0;
}
