/* The first eventfd of a process is made in the middle of sigaction(2), signal(2) and similar
 * calls, once after each instruction. The handler is still delayed during calls on objects. The
 * kernel has the same handler as for an action that is set afterwards: the program's own, or the
 * wrapper that calls it. */
#include "../c/check.h"

#ifdef __x86_64__
#include "steps.h"
#include <sys/syscall.h>
#include <sys/wait.h>

static long countdown;
static int has_fired;

static void traps(int number, siginfo_t *info, void *context)
{
	(void)number, (void)info;
	if (--countdown > 0)
		return;
	end_steps_of(context);
	has_fired = 1;
	CHECK(eventfd(0, 0) >= 0);
}

static void handles(int number)
{
	(void)number;
}

/* Returns whether the kernel has the program's own handler. The library does not see this call. */
static int is_programs(int number)
{
	struct {
		void (*handler)(int);
		unsigned long flags, restorer, mask;
	} action = {0};
	long result = SYS_rt_sigaction;
	register unsigned long size __asm__("r10") = sizeof action.mask;
	__asm__ volatile("syscall" : "+a"(result) : "D"((long)number), "S"(0L), "d"(&action), "r"(size)
			 : "rcx", "r11", "memory");
	CHECK(result == 0);
	return action.handler == handles;
}

static void set(int way, int number)
{
	struct sigaction action = {.sa_handler = handles};
	if (way == 0)
		CHECK(sigaction(number, &action, NULL) == 0);
	else
		CHECK(signal(number, handles) != SIG_ERR);
}

/* Exits with 0 if the call returned before. */
static void set_interrupted(int way, long at)
{
	/* Resolves all symbols. */
	set(way, SIGUSR2);
	countdown = at;
	begin_steps();
	set(way, SIGUSR1);
	end_steps();
	if (!has_fired)
		_exit(0);
	set(way, SIGUSR2);
	_exit(is_programs(SIGUSR1) == is_programs(SIGUSR2) ? 2 : 3);
}

int main(void)
{
	struct sigaction action = {.sa_sigaction = traps, .sa_flags = SA_SIGINFO};
	int way;
	CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
	for (way = 0; way < 2; way++) {
		int status = 2;
		long at;
		for (at = 1; status == 2 && at < 2000; at++) {
			pid_t child = fork();
			if (child == 0)
				set_interrupted(way, at);
			CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
			status = WEXITSTATUS(status);
		}
		if (status != 0 || at < 10) {
			fprintf(stderr, "way %d, instruction %ld: %d\n", way, at - 1, status);
			return 1;
		}
	}
	return 0;
}
#else
int main(void) { return 77; }
#endif
