/* A thread made by clone(2) that shares the thread-local storage of its parent's thread. Both call
 * functions of the C library for the first time, at the same moment. */
#include "../c/check.h"
#include <sched.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { AT_ONCE = 8, ROUNDS = 100 };

static char stack[1 << 18] __attribute__((aligned(16)));
static volatile int begun, ended;

static void call_all(void)
{
	struct timeval now = {0, 0};
	struct timespec none = {0, 0};
	dup(-1);
	dup3(-1, 100, 0);
	close(-1);
	fcntl(-1, F_GETFD);
	ioctl(-1, FIONREAD, NULL);
	read(-1, NULL, 0);
	write(-1, NULL, 0);
	readv(-1, NULL, 0);
	writev(-1, NULL, 0);
	preadv2(-1, NULL, 0, 0, 0);
	pwritev2(-1, NULL, 0, 0, 0);
	poll(NULL, 0, 0);
	ppoll(NULL, 0, &none, NULL);
	select(0, NULL, NULL, NULL, &now);
	pselect(0, NULL, NULL, NULL, &none, NULL);
	epoll_wait(-1, NULL, 0, 0);
	epoll_pwait(-1, NULL, 0, 0, NULL);
	epoll_ctl(-1, 0, -1, NULL);
	send(-1, NULL, 0, 0);
	sendto(-1, NULL, 0, 0, NULL, 0);
	sendmsg(-1, NULL, 0);
	recv(-1, NULL, 0, 0);
	recvfrom(-1, NULL, 0, 0, NULL, NULL);
	recvmsg(-1, NULL, 0);
	shutdown(-1, 0);
	getsockopt(-1, 0, 0, NULL, NULL);
	setsockopt(-1, 0, 0, NULL, 0);
	splice(-1, NULL, -1, NULL, 0, 0);
	tee(-1, -1, 0, 0);
	vmsplice(-1, NULL, 0, 0);
}

static int bare(void *unused)
{
	(void)unused;
	begun = 1;
	call_all();
	ended = 1;
	return 0;
}

static int first_calls(void)
{
	int how = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
	CHECK(clone(bare, stack + sizeof stack, how, NULL) > 0);
	while (!begun)
		;
	call_all();
	while (!ended)
		;
	return 0;
}

int main(int count, char **arguments)
{
	if (count > 1) {
		/* A call that waits for ever is ended. */
		alarm(200);
		return first_calls();
	}
	for (int round = 0; round < ROUNDS; round++) {
		int status;
		for (int process = 0; process < AT_ONCE; process++) {
			pid_t child = fork();
			CHECK(child >= 0);
			if (child == 0) {
				execl("/proc/self/exe", arguments[0], "child", NULL);
				_exit(127);
			}
		}
		for (int process = 0; process < AT_ONCE; process++)
			CHECK(wait(&status) > 0 && status == 0);
	}
	return 0;
}
