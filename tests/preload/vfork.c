/* vfork(2): the parent waits, and the child shares its memory, but has an fd table and signal
 * actions of its own. */
#include "../c/check.h"
#include <sys/resource.h>
#include <sys/wait.h>

#ifndef EPOLL_ROTATE
#define EPOLL_ROTATE 1
#endif

enum { THREADS = 4, ROUNDS = 200 };

static volatile int was_called, error_of_exec;

static void is_called(void)
{
	was_called++;
}

static int ends_with(int child)
{
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void shares_memory(void)
{
	volatile int written = 0;
	int child;
	errno = EXDEV;
	child = vfork();
	if (child == 0) {
		/* A parent that does not wait would miss the write. */
		sleep_ms(50);
		written = 5;
		_exit(7);
	}
	CHECK(written == 5 && was_called == 0 && errno == EXDEV);
	CHECK(ends_with(child) == 7);

	child = vfork();
	if (child == 0) {
		execl("/nonexistent/program", "program", NULL);
		error_of_exec = errno;
		_exit(127);
	}
	CHECK(error_of_exec == ENOENT && was_called == 0);
	CHECK(ends_with(child) == 127);

	/* The parent waits until the child executes a program, not until that ends. */
	child = vfork();
	if (child == 0) {
		execl("/bin/sh", "sh", "-c", "exit 9", NULL);
		_exit(127);
	}
	CHECK(ends_with(child) == 9);
}

static void *reads(void *place)
{
	uint64_t value = 0;
	CHECK(read(*(int *)place, &value, sizeof value) == sizeof value);
	return (void *)(uintptr_t)value;
}

static void has_fds_of_its_own(void)
{
	int counted = eventfd(3, EFD_NONBLOCK), watched = eventfd(0, EFD_NONBLOCK), waited = eventfd(0, 0);
	int set = epoll_create1(0), ends[2], child, made;
	struct epoll_event event;
	pthread_t waiter;
	uint64_t value;
	void *got;
	char byte;
	CHECK(counted >= 0 && watched >= 0 && waited >= 0 && set >= 0 && pipe(ends) == 0);
	CHECK(add(set, watched, EPOLLIN, 11) == 0 && write(ends[1], "x", 1) == 1);
	CHECK(pthread_create(&waiter, NULL, reads, &waited) == 0);
	sleep_ms(20);

	child = vfork();
	if (child == 0) {
		/* The child uses the same objects, as long as they are open. */
		value = 4;
		if (write(counted, &value, sizeof value) != sizeof value || read(ends[0], &byte, 1) != 1 || byte != 'x')
			_exit(1);
		if (dup2(ends[0], watched) != watched || dup2(counted, set) != set || dup2(set, waited) != waited)
			_exit(2);
		close(counted), close(ends[0]), close(ends[1]);
		made = eventfd(0, 0);
		close_range(3, ~0U, 0);
		_exit(made == counted ? 7 : 3);
	}
	CHECK(ends_with(child) == 7 && was_called == 0);

	CHECK(read(counted, &value, sizeof value) == sizeof value && value == 7);
	FAILS(read(counted, &value, sizeof value), EAGAIN);
	CHECK(epoll_wait(set, &event, 1, 0) == 0);
	value = 9;
	CHECK(write(watched, &value, sizeof value) == sizeof value);
	CHECK(epoll_wait(set, &event, 1, 60000) == 1 && event.data.u64 == 11);
	CHECK(write(waited, &value, sizeof value) == sizeof value);
	CHECK(pthread_join(waiter, &got) == 0 && (uintptr_t)got == 9);
	CHECK(write(ends[1], "y", 1) == 1 && read(ends[0], &byte, 1) == 1 && byte == 'y');
	close(counted), close(watched), close(waited), close(set), close(ends[0]), close(ends[1]);
}

/* Runs in a process that may not create another one. */
static void fails_as_other_calls(void)
{
	struct rlimit none = {0, 0};
	int child = fork(), own;
	if (child == 0) {
		if (geteuid() == 0 && setuid(65534) != 0)
			_exit(7);
		CHECK(setrlimit(RLIMIT_NPROC, &none) == 0);
		errno = 0;
		own = vfork();
		if (own == 0)
			_exit(1);
		CHECK(own == -1 && errno == EAGAIN);
		_exit(7);
	}
	CHECK(ends_with(child) == 7);
}

static void *has_children(void *unused)
{
	volatile int written = -1;
	uint64_t value;
	for (volatile int round = 0; round < ROUNDS; round++) {
		int counter = eventfd(1, 0), child;
		CHECK(counter >= 0);
		child = vfork();
		if (child == 0) {
			written = round;
			close(counter);
			_exit(round % 100);
		}
		CHECK(written == round && ends_with(child) == round % 100);
		CHECK(read(counter, &value, sizeof value) == sizeof value && value == 1);
		CHECK(close(counter) == 0);
	}
	return unused;
}

static void by_many_threads(void)
{
	pthread_t threads[THREADS];
	for (int at = 0; at < THREADS; at++)
		CHECK(pthread_create(&threads[at], NULL, has_children, NULL) == 0);
	for (int at = 0; at < THREADS; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
}

static volatile int is_over;

static void *makes(void *unused)
{
	uint64_t value;
	while (!is_over) {
		int counter = eventfd(6, EFD_NONBLOCK);
		CHECK(counter >= 0);
		CHECK(read(counter, &value, sizeof value) == sizeof value && value == 6);
		CHECK(close(counter) == 0);
	}
	return unused;
}

/* The child must not close objects that other threads are just making. */
static void beside_makers(void)
{
	pthread_t threads[THREADS];
	for (int at = 0; at < THREADS; at++)
		CHECK(pthread_create(&threads[at], NULL, makes, NULL) == 0);
	for (volatile int round = 0; round < ROUNDS; round++) {
		int child = vfork();
		if (child == 0) {
			close_range(3, ~0U, 0);
			_exit(7);
		}
		CHECK(ends_with(child) == 7);
	}
	is_over = 1;
	for (int at = 0; at < THREADS; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
}

static volatile int of_handlers;

static void has_child(int signal)
{
	int known = errno, child = vfork();
	(void)signal;
	if (child == 0) {
		of_handlers++;
		_exit(7);
	}
	CHECK(ends_with(child) == 7);
	errno = known;
}

/* A handler makes a child, in a child and in its parent. */
static void in_handlers(void)
{
	int counter = eventfd(0, EFD_NONBLOCK), child;
	uint64_t value = 2;
	CHECK(signal(SIGUSR1, has_child) != SIG_ERR);
	child = vfork();
	if (child == 0) {
		raise(SIGUSR1);
		_exit(of_handlers == 1 ? 7 : 1);
	}
	CHECK(ends_with(child) == 7);
	CHECK(raise(SIGUSR1) == 0 && of_handlers == 2);
	CHECK(write(counter, &value, sizeof value) == sizeof value);
	CHECK(read(counter, &value, sizeof value) == sizeof value && value == 2);
	CHECK(close(counter) == 0);
}

static void by_its_child(void)
{
	volatile int written = 0;
	int child = vfork();
	if (child == 0) {
		int own = vfork();
		if (own == 0) {
			written = 1;
			_exit(5);
		}
		written += ends_with(own);
		_exit(7);
	}
	CHECK(written == 6 && ends_with(child) == 7);
}

/* A set that the kernel cannot serve. */
static void with_a_rotating_set(void)
{
	int set = epoll_create1(EPOLL_ROTATE), counter = eventfd(0, 0), child;
	struct epoll_event event;
	uint64_t value = 1;
	if (set == -1)
		return;
	CHECK(counter >= 0 && add(set, counter, EPOLLIN, 12) == 0);
	child = vfork();
	if (child == 0) {
		close_range(3, ~0U, 0);
		_exit(7);
	}
	CHECK(ends_with(child) == 7);
	CHECK(epoll_wait(set, &event, 1, 0) == 0);
	CHECK(write(counter, &value, sizeof value) == sizeof value);
	CHECK(epoll_wait(set, &event, 1, 60000) == 1 && event.data.u64 == 12);
	CHECK(close(set) == 0 && close(counter) == 0);
}

int main(void)
{
	alarm(200);
	CHECK(pthread_atfork(is_called, is_called, is_called) == 0);
	/* Objects that are made after a child are served as before. */
	for (int round = 0; round < 3; round++) {
		shares_memory();
		has_fds_of_its_own();
	}
	in_handlers();
	by_its_child();
	by_many_threads();
	beside_makers();
	has_fds_of_its_own();
	CHECK(was_called == 0);
	fails_as_other_calls();
	with_a_rotating_set();
	return 0;
}
