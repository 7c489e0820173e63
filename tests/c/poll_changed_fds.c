/* poll(2) and select(2) look every fd up again before they return. A closed fd is reported as
 * closed, and a replaced one as the new file. A call that ends by a signal has written no event.
 * More entries than RLIMIT_NOFILE fail. */
#include "check.h"
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/time.h>

enum { LONG = 60000, SHORT = 3000 };

static void on_signal(int signal)
{
	(void)signal;
}

/* The action of another thread on `fd` while the main thread waits. */
struct change {
	pthread_t main, thread;
	int fd, other, wakes, signals;
	atomic_int is_over;
};

static void *change(void *argument)
{
	struct change *todo = argument;
	/* A call that begins later finds another file from the beginning. */
	sleep_ms(200);
	wait_until_asleep(getpid());
	if (todo->other >= 0)
		CHECK(dup2(todo->other, todo->fd) == todo->fd);
	else
		CHECK(close(todo->fd) == 0);
	sleep_ms(50);
	if (todo->wakes >= 0)
		CHECK(eventfd_write(todo->wakes, 1) == 0);
	/* Repeated, because a signal before the sleep does not end the call. */
	while (todo->signals && !todo->is_over) {
		sleep_ms(100);
		pthread_kill(todo->main, SIGUSR1);
	}
	return NULL;
}

static void begin(struct change *todo, int fd)
{
	todo->is_over = 0;
	todo->main = pthread_self();
	todo->fd = fd;
	CHECK(pthread_create(&todo->thread, NULL, change, todo) == 0);
}

static void end(struct change *todo)
{
	todo->is_over = 1;
	CHECK(pthread_join(todo->thread, NULL) == 0);
}

/* Raises a signal periodically, because one before the sleep does not end the call. 0 stops it. */
static void alarm_each(long ms)
{
	struct itimerval each = {{0, ms * 1000}, {0, ms * 1000}};
	CHECK(setitimer(ITIMER_REAL, &each, NULL) == 0);
}

static struct timeval after(long ms)
{
	struct timeval time = {ms / 1000, ms % 1000 * 1000};
	return time;
}

static void interrupted(void)
{
	int counter = eventfd(0, 0), fds[2];
	struct pollfd list[3];
	fd_set in;
	CHECK(pipe(fds) == 0);
	memset(list, 0, sizeof list);
	list[0].fd = counter;
	list[1].fd = fds[0];
	list[2].fd = -1;
	for (int n = 0; n < 3; n++) {
		list[n].events = POLLIN;
		list[n].revents = 0x55;
	}
	alarm_each(50);
	FAILS(poll(list, 3, -1), EINTR);
	CHECK(!list[0].revents && !list[1].revents && !list[2].revents);
	list[0].revents = 0x55;
	alarm_each(50);
	FAILS(poll(list, 1, -1), EINTR);
	CHECK(!list[0].revents);
	/* select does not change its sets. */
	FD_ZERO(&in);
	FD_SET(counter, &in);
	alarm_each(50);
	FAILS(select(counter + 1, &in, NULL, NULL, NULL), EINTR);
	CHECK(FD_ISSET(counter, &in));
	alarm_each(0);
	CHECK(close(counter) == 0 && close(fds[0]) == 0 && close(fds[1]) == 0);
}

static void closed_by_poll(int limit, int wakes, int signals, int with_pipe)
{
	int counter = eventfd(0, 0), waker = eventfd(0, 0), fds[2];
	struct change todo = {.other = -1, .wakes = wakes ? waker : -1, .signals = signals};
	struct pollfd list[3] = {{counter, POLLIN, 0x55}, {waker, POLLIN, 0x55}, {-1, POLLIN, 0x55}};
	CHECK(pipe(fds) == 0);
	if (with_pipe)
		list[2].fd = fds[0];
	begin(&todo, counter);
	CHECK(poll(list, 3, limit) == 1 + wakes);
	CHECK(list[0].revents == POLLNVAL);
	CHECK(list[1].revents == (wakes ? POLLIN : 0) && !list[2].revents);
	end(&todo);
	CHECK(close(waker) == 0 && close(fds[0]) == 0 && close(fds[1]) == 0);
}

static void closed_by_select(int limit, int signals)
{
	int counter = eventfd(0, 0), idle = eventfd(0, 0);
	struct change todo = {.other = -1, .wakes = -1, .signals = signals};
	struct timeval time = after(limit);
	fd_set sets[3];
	for (int n = 0; n < 3; n++) {
		FD_ZERO(&sets[n]);
		FD_SET(counter, &sets[n]);
	}
	/* The counter is writable already, so the set must not contain it. */
	FD_CLR(counter, &sets[1]);
	FD_SET(idle, &sets[0]);
	begin(&todo, counter);
	CHECK(select(idle + 1, &sets[0], &sets[1], &sets[2], &time) == 2);
	CHECK(FD_ISSET(counter, &sets[0]) && FD_ISSET(counter, &sets[2]));
	CHECK(!FD_ISSET(counter, &sets[1]) && !FD_ISSET(idle, &sets[0]));
	end(&todo);
	CHECK(close(idle) == 0);
}

static void replaced(void)
{
	/* Replaced by a ready file. */
	int counter = eventfd(0, 0), ready = eventfd(1, 0), waker = eventfd(0, 0), idle;
	struct change todo = {.other = ready, .wakes = -1, .signals = 1};
	struct pollfd list[2] = {{counter, POLLIN, 0}, {waker, POLLIN, 0}};
	struct timeval time = after(LONG);
	fd_set in;
	begin(&todo, counter);
	CHECK(poll(list, 2, LONG) == 1 && list[0].revents == POLLIN && !list[1].revents);
	end(&todo);
	CHECK(close(counter) == 0);
	counter = eventfd(0, 0);
	FD_ZERO(&in);
	FD_SET(counter, &in);
	FD_SET(waker, &in);
	begin(&todo, counter);
	CHECK(select(waker > counter ? waker + 1 : counter + 1, &in, NULL, NULL, &time) == 1);
	CHECK(FD_ISSET(counter, &in) && !FD_ISSET(waker, &in));
	end(&todo);
	CHECK(close(counter) == 0 && close(ready) == 0);

	/* Replaced by an idle file: the events of the old one do not count any more. */
	idle = eventfd(0, 0);
	counter = eventfd(0, 0);
	ready = dup(counter);
	todo.other = idle;
	todo.wakes = ready;
	list[0].fd = counter;
	begin(&todo, counter);
	FAILS(poll(list, 2, LONG), EINTR);
	CHECK(!list[0].revents && !list[1].revents);
	end(&todo);
	CHECK(close(counter) == 0 && close(ready) == 0 && close(idle) == 0 && close(waker) == 0);
}

static void limited(void)
{
	int counter = eventfd(1, 0), idle = eventfd(0, 0);
	struct pollfd list[40];
	struct rlimit before, low;
	struct timespec soon = {0, 1000000};
	CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
	low = before;
	for (int n = 0; n < 40; n++) {
		list[n].fd = counter;
		list[n].events = POLLIN;
	}
	low.rlim_cur = 20;
	CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
	CHECK(poll(list, 20, 0) == 20);
	FAILS(poll(list, 21, 0), EINVAL);
	FAILS(poll(list, 30, -1), EINVAL);
	FAILS(poll(list, 31, 0), EINVAL);
	FAILS(ppoll(list, 21, &soon, NULL), EINVAL);
	FAILS(poll(NULL, 21, 0), EINVAL);
	for (int n = 0; n < 40; n++)
		list[n].fd = n % 2 ? -1 : idle;
	CHECK(poll(list, 20, 1) == 0);
	FAILS(poll(list, 21, 1), EINVAL);
	/* A call that would sleep fails, however short its list is. */
	low.rlim_cur = 3;
	CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
	CHECK(poll(list, 3, 1) == 0);
	FAILS(poll(list, 4, 1), EINVAL);
	CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
	CHECK(close(counter) == 0 && close(idle) == 0);
}

int main(void)
{
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_handler = on_signal;
	CHECK(sigaction(SIGALRM, &action, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
	interrupted();
	closed_by_poll(SHORT, 0, 0, 0);
	closed_by_poll(LONG, 1, 0, 0);
	closed_by_poll(LONG, 1, 0, 1);
	closed_by_poll(LONG, 0, 1, 0);
	closed_by_poll(LONG, 0, 1, 1);
	closed_by_select(SHORT, 0);
	closed_by_select(LONG, 1);
	replaced();
	limited();
	return 0;
}
