/* Calls at times when a library may not be ready yet or any more: before all constructors, as a
 * thread ends, and as the process ends. */
#include "../c/check.h"
#include <sys/wait.h>

extern int __cxa_thread_atexit_impl(void (*)(void *), void *, void *);
extern void *__dso_handle;

/* Makes all kinds of calls once. */
static void use_all(void)
{
	struct epoll_event events[2];
	struct pollfd entry;
	struct timeval now = {0, 0};
	uint64_t value = 3;
	fd_set in;
	int fds[2], set, copy, fd = eventfd(0, EFD_NONBLOCK);
	CHECK(fd >= 0);
	CHECK((set = epoll_create1(EPOLL_CLOEXEC)) >= 0);
	CHECK(pipe(fds) == 0);
	CHECK(add(set, fd, EPOLLIN, 1) == 0 && add(set, fds[0], EPOLLIN, 2) == 0);
	CHECK(epoll_wait(set, events, 2, 0) == 0);
	CHECK(write(fd, &value, sizeof value) == sizeof value);
	CHECK(write(fds[1], "x", 1) == 1);
	CHECK(epoll_wait(set, events, 2, 60000) == 2);
	entry.fd = fd, entry.events = POLLIN;
	CHECK(poll(&entry, 1, 60000) == 1 && entry.revents == POLLIN);
	FD_ZERO(&in);
	FD_SET(fd, &in);
	CHECK(select(fd + 1, &in, NULL, NULL, &now) == 1);
	CHECK((copy = dup(fd)) >= 0);
	CHECK(close(fd) == 0);
	value = 0;
	CHECK(read(copy, &value, sizeof value) == sizeof value && value == 3);
	CHECK(epoll_wait(set, events, 2, 0) == 1);
	FAILS(read(copy, &value, sizeof value), EAGAIN);
	entry.fd = copy;
	CHECK(poll(&entry, 1, 20) == 0);
	CHECK(close(copy) == 0 && close(set) == 0 && close(fds[0]) == 0 && close(fds[1]) == 0);
}

static int times;

static void at_a_moment(void *nothing)
{
	(void)nothing;
	use_all();
	times++;
}

static void before_constructors(void)
{
	at_a_moment(NULL);
}

__attribute__((section(".preinit_array"), used)) static void (*early)(void) = before_constructors;

__attribute__((constructor(101))) static void constructor(void)
{
	at_a_moment(NULL);
}

/* Runs last, after the functions that the program has registered. */
__attribute__((destructor(101))) static void destructor(void)
{
	at_a_moment(NULL);
}

static pthread_key_t key, again;

static void as_thread_ends(void *rounds)
{
	at_a_moment(NULL);
	/* Once more, after all destructors have run once. */
	if ((uintptr_t)rounds > 1)
		CHECK(pthread_setspecific(again, (void *)((uintptr_t)rounds - 1)) == 0);
}

static void *thread(void *uses_before)
{
	CHECK(pthread_setspecific(key, (void *)3) == 0);
	CHECK(__cxa_thread_atexit_impl(at_a_moment, NULL, &__dso_handle) == 0);
	if (uses_before)
		use_all();
	CHECK(__cxa_thread_atexit_impl(at_a_moment, NULL, &__dso_handle) == 0);
	return NULL;
}

static void at_exit(void)
{
	at_a_moment(NULL);
}

int main(void)
{
	pthread_t threads[2];
	int at, status;
	pid_t child;
	CHECK(times == 2);
	CHECK(pthread_key_create(&key, as_thread_ends) == 0);
	CHECK(pthread_key_create(&again, as_thread_ends) == 0);
	for (at = 0; at < 200; at++) {
		CHECK(pthread_create(&threads[0], NULL, thread, NULL) == 0);
		CHECK(pthread_create(&threads[1], NULL, thread, &threads) == 0);
		CHECK(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);
	}
	CHECK(atexit(at_exit) == 0);
	/* A thread forks several times, and each child makes all these calls. */
	CHECK(pthread_create(&threads[0], NULL, thread, &threads) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		use_all();
		exit(5);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
	CHECK(pthread_join(threads[0], NULL) == 0);
	return 0;
}
