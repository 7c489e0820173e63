/* A child made by clone(2) that shares its parent's fd table and has a copy of the memory: each
 * process can use the objects of the other. */
#include "../c/check.h"
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int numbers[2], begin[2];

/* Makes a counter with the value 5, passes on its fd, and waits until another counter has the value
 * 6. */
static int makes(void *nothing)
{
	eventfd_t value;
	int counter = eventfd(5, EFD_NONBLOCK), other;
	(void)nothing;
	alarm(200);
	CHECK(counter >= 0);
	CHECK(write(numbers[1], &counter, sizeof counter) == sizeof counter);
	CHECK(read(begin[0], &other, sizeof other) == sizeof other);
	CHECK(eventfd_read(other, &value) == 0 && value == 6);
	_exit(7);
}

static void check_child(int child)
{
	eventfd_t value;
	int status, counter, own = eventfd(6, EFD_NONBLOCK);
	CHECK(child > 0 && own >= 0);
	CHECK(read(numbers[0], &counter, sizeof counter) == sizeof counter);
	CHECK(eventfd_read(counter, &value) == 0 && value == 5);
	CHECK(write(begin[1], &own, sizeof own) == sizeof own);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

/* Runs each test in a process of its own, because the library remembers such a child. */
static void in_a_child(void (*test)(void))
{
	int status, child = fork();
	if (child == 0) {
		CHECK(pipe(numbers) == 0 && pipe(begin) == 0);
		alarm(300);
		test();
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void by_function(void)
{
	static char stack[1 << 18] __attribute__((aligned(16)));
	check_child(clone(makes, stack + sizeof stack, CLONE_FILES | SIGCHLD, NULL));
}

static void by_number(void)
{
	/* The other arguments are 0, so their order does not matter. */
	long child = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0L, 0L, 0L, 0L);
	if (child == 0)
		makes(NULL);
	check_child((int)child);
}

static void by_the_third(void)
{
	/* struct clone_args: flags, three pointers, and the signal. */
	uint64_t arguments[8] = {CLONE_FILES, 0, 0, 0, SIGCHLD};
	long child = syscall(435L, arguments, sizeof arguments);
	if (child == 0)
		makes(NULL);
	if (child == -1 && errno == ENOSYS)
		return;
	check_child((int)child);
}

int main(void)
{
	in_a_child(by_function);
	in_a_child(by_number);
	in_a_child(by_the_third);
	return 0;
}
