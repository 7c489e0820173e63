/* A thread made by clone(2) that shares the thread-local storage of its parent's thread. Its calls
 * on kernel fds neither delay that thread's signal handlers nor leave its signals blocked. */
#include "../c/check.h"
#include <sched.h>
#include <sys/syscall.h>

enum { ROUNDS = 100000 };

static char stack[1 << 18] __attribute__((aligned(16)));
static int pipes[2], looks;
static volatile int step, handled;

static void handler(int signal)
{
	(void)signal;
	handled++;
}

static void await(int value)
{
	while (step < value)
		;
}

static void bare(int (*function)(void *))
{
	int how = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
	step = 0;
	CHECK(clone(function, stack + sizeof stack, how, NULL) > 0);
	await(1);
}

/* Sleeps until a byte can be read. */
static int sleeps(void *unused)
{
	struct pollfd entry = {pipes[0], POLLIN, 0};
	fd_set set;
	(void)unused;
	FD_ZERO(&set);
	FD_SET(pipes[0], &set);
	step = 1;
	if (looks == 0)
		CHECK(poll(&entry, 1, -1) == 1);
	else
		CHECK(select(pipes[0] + 1, &set, NULL, NULL, NULL) == 1);
	step = 2;
	return 0;
}

static void churn(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		int copy = dup(pipes[0]);
		CHECK(copy >= 0 && fcntl(copy, F_SETFL, O_NONBLOCK) == 0);
		CHECK(dup2(pipes[1], copy) == copy && close(copy) == 0);
	}
}

static int churns(void *unused)
{
	(void)unused;
	step = 1;
	churn();
	step = 2;
	return 0;
}

int main(void)
{
	sigset_t blocked;
	char byte = 1;
	alarm(200);
	CHECK(pipe(pipes) == 0 && signal(SIGUSR1, handler) != SIG_ERR);
	/* The process has a user-level object first. */
	CHECK(add(epoll_create1(0), eventfd(0, 0), EPOLLIN, 1) == 0);
	for (looks = 0; looks < 2; looks++) {
		bare(sleeps);
		sleep_ms(50);
		CHECK(syscall(SYS_tgkill, getpid(), getpid(), SIGUSR1) == 0);
		CHECK(handled == looks + 1);
		CHECK(write(pipes[1], &byte, 1) == 1);
		await(2);
		CHECK(read(pipes[0], &byte, 1) == 1);
	}
	bare(churns);
	churn();
	await(2);
	CHECK(sigprocmask(SIG_BLOCK, NULL, &blocked) == 0);
	for (int signal = 1; signal < 32; signal++)
		CHECK(sigismember(&blocked, signal) == 0);
	CHECK(raise(SIGUSR1) == 0 && handled == 3);
	return 0;
}
