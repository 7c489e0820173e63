/* A signal handler demotes a socket by a send with MSG_OOB, which only the kernel serves, while its
 * thread is demoting the same socket. */
#include "../c/check.h"
#include <sys/socket.h>
#include <sys/time.h>

enum { PAIRS = 400 };
static int pairs[PAIRS][2];
static volatile int next;

static void on_alarm(int signal)
{
	int error = errno, mine = next;
	(void)signal;
	if (mine < PAIRS) {
		next = mine + 1;
		send(pairs[mine][0], "x", 1, MSG_OOB | MSG_DONTWAIT);
	}
	errno = error;
}

int main(void)
{
	struct itimerval often = {{0, 300}, {0, 300}};
	int at, fds[2];
	for (at = 0; at < PAIRS; at++)
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[at]) == 0);
	signal(SIGALRM, on_alarm);
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	while (next < PAIRS) {
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
		send(fds[0], "y", 1, MSG_OOB | MSG_DONTWAIT);
		CHECK(close(fds[0]) == 0 && close(fds[1]) == 0);
	}
	return 0;
}
