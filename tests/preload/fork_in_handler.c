/* _Fork calls no atfork handlers, and is meant for signal handlers that interrupt an allocation
 * beside other threads. Its child has all objects of its parent. */
#include "../c/check.h"
#include <dlfcn.h>
#include <sys/time.h>
#include <sys/wait.h>

static volatile int handled, forks;
static int counter;
static pid_t (*fork_alone)(void);

static void counts(void)
{
	handled++;
}

static void handler(int signal)
{
	uint64_t value = 1;
	int status, copy;
	pid_t child = fork_alone();
	(void)signal;
	if (child == 0) {
		/* Calls that POSIX allows here. */
		alarm(300);
		copy = dup(counter);
		if (copy < 0 || write(copy, &value, sizeof value) != sizeof value || close(copy) != 0)
			_exit(1);
		_exit(pipe((int[2]){0}) == 0 && handled == 0 ? 7 : 2);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	forks++;
}

static void *sleeps(void *unused)
{
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	for (;;)
		pause();
	return unused;
}

int main(void)
{
	struct itimerval time = {{0, 3000}, {0, 3000}};
	pthread_t thread;
	uint64_t value;
	alarm(200);
	*(void **)&fork_alone = dlsym(RTLD_DEFAULT, "_Fork");
	if (fork_alone == NULL)
		return 77;
	CHECK(pthread_atfork(counts, counts, counts) == 0);
	CHECK(pthread_create(&thread, NULL, sleeps, NULL) == 0);
	counter = eventfd(0, 0);
	/* The first call demotes objects, and interrupts no other call. */
	handler(0);
	CHECK(signal(SIGPROF, handler) != SIG_ERR);
	CHECK(setitimer(ITIMER_PROF, &time, NULL) == 0);
	while (forks < 200) {
		void *volatile small = malloc(3000), *volatile large = malloc(200000);
		free(large);
		free(small);
	}
	time = (struct itimerval){{0, 0}, {0, 0}};
	CHECK(setitimer(ITIMER_PROF, &time, NULL) == 0);
	CHECK(handled == 0);
	CHECK(read(counter, &value, sizeof value) == sizeof value && value == (uint64_t)forks);
	return 0;
}
