/* A handler that asks for a restart gives the fd of a blocked call to another file. The call begins again with that. */
#include "../c/check.h"
#include <stdatomic.h>
#include <sys/syscall.h>

static int counter, ends[2], other[2];
static atomic_int reader;
static atomic_bool is_over;

static void gives_a_counter(int signal)
{
	(void)signal;
	CHECK(dup2(counter, ends[0]) == ends[0]);
}

static void gives_a_pipe(int signal)
{
	(void)signal;
	CHECK(dup2(other[0], ends[0]) == ends[0]);
}

/* The bytes behind the one that is asked for stay as they are. */
static void *reads(void *expected)
{
	char bytes[16];
	ssize_t got;
	int at;
	memset(bytes, 'c', sizeof bytes);
	reader = (int)syscall(SYS_gettid);
	errno = 0;
	got = read(ends[0], bytes, 1);
	CHECK(got == (ssize_t)(intptr_t)expected && (got == 1 || errno == EINVAL));
	for (at = got == 1; at < 16; at++)
		CHECK(bytes[at] == 'c');
	is_over = 1;
	return NULL;
}

static void restart(void (*handler)(int), ssize_t expected)
{
	struct sigaction action;
	pthread_t thread;
	memset(&action, 0, sizeof action);
	action.sa_handler = handler;
	action.sa_flags = SA_RESTART;
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(pipe(ends) == 0);
	reader = is_over = 0;
	CHECK(pthread_create(&thread, NULL, reads, (void *)(intptr_t)expected) == 0);
	while (reader == 0)
		sched_yield();
	wait_until_asleep(reader);
	CHECK(!is_over && pthread_kill(thread, SIGUSR1) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	close(ends[0]), close(ends[1]);
}

int main(void)
{
	counter = eventfd(1, 0);
	CHECK(counter >= 0 && pipe(other) == 0 && write(other[1], "x", 1) == 1);
	/* There is a count, for which one byte is no room. */
	restart(gives_a_counter, -1);
	restart(gives_a_pipe, 1);
	return 0;
}
