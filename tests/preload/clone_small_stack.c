/* A child of clone(2) with a copy of the memory needs no more stack than without the library. */
#include "../c/check.h"
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { PAGE = 4096, SIZE = 512 };

static int counter, place;

static int in_the_child(void *argument)
{
	uint64_t count;
	if ((uintptr_t)&count % sizeof count != 0 || argument != &counter)
		return 101;
	/* Inline, because the C library's first call of a function takes more stack than there is. */
#ifdef __x86_64__
	{
		long result;
		__asm__ volatile("syscall" : "=a"(result)
				 : "0"(SYS_read), "D"(counter), "S"(&count), "d"(sizeof count)
				 : "rcx", "r11", "memory");
		if (result != sizeof count)
			return 102;
	}
#else
	count = 9;
#endif
	return (int)count;
}

int main(void)
{
	/* The page below the stack is inaccessible. */
	char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int status, flags;
	pid_t child, parent_has = 0;
	alarm(200);
	CHECK(pages != MAP_FAILED && mprotect(pages, PAGE, PROT_NONE) == 0);
	for (flags = 0; flags < 2; flags++) {
		counter = eventfd(9, 0);
		CHECK(counter >= 0);
		child = clone(in_the_child, pages + PAGE + SIZE - 4,
			      SIGCHLD | (flags ? CLONE_PARENT_SETTID | CLONE_CHILD_SETTID : 0),
			      &counter, &parent_has, NULL, &place);
		CHECK(child > 0 && waitpid(child, &status, 0) == child);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 9);
		CHECK(parent_has == (flags ? child : 0) && place == 0);
		close(counter);
	}
	FAILS(clone(NULL, pages + PAGE + SIZE, SIGCHLD, NULL), EINVAL);
	FAILS(clone(in_the_child, NULL, SIGCHLD, NULL), EINVAL);
	return 0;
}
