/* dup2 of an eventfd to the fd of a socket with SO_LINGER: the close waits for the peer, and a signal
 * ends the wait. */
#include "../c/check.h"
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

static volatile sig_atomic_t ran;

static void on_alarm(int signal)
{
	(void)signal;
	ran = 1;
}

/* Opens a socket with more unsent bytes than its peer takes. */
static int lingering(void)
{
	static char bytes[65536];
	struct sockaddr_in address = {0};
	struct linger linger = {1, 60};
	socklen_t size = sizeof address;
	int small = 4096, listening = socket(AF_INET, SOCK_STREAM, 0), one, other;
	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(setsockopt(listening, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
	CHECK(bind(listening, (struct sockaddr *)&address, size) == 0 && listen(listening, 1) == 0);
	CHECK(getsockname(listening, (struct sockaddr *)&address, &size) == 0);
	one = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(one, (struct sockaddr *)&address, size) == 0);
	other = accept(listening, NULL, NULL);
	CHECK(other >= 0);
	CHECK(setsockopt(one, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
	CHECK(fcntl(one, F_SETFL, O_NONBLOCK) == 0);
	while (send(one, bytes, sizeof bytes, 0) > 0)
		;
	return one;
}

int main(void)
{
	struct itimerval soon = {{0, 0}, {0, 300000}};
	struct sigaction action = {0};
	struct timespec begun, ended;
	/* The library serves dup2 as long as the process has a user-level object. */
	int other = eventfd(0, 0), counter = eventfd(3, 0), socket = lingering();
	uint64_t count;
	CHECK(other >= 0 && counter >= 0);
	action.sa_handler = on_alarm;
	CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &soon, NULL) == 0);
	CHECK(clock_gettime(CLOCK_MONOTONIC, &begun) == 0);
	CHECK(dup2(counter, socket) == socket);
	CHECK(clock_gettime(CLOCK_MONOTONIC, &ended) == 0);
	CHECK(ran && ended.tv_sec - begun.tv_sec < 50);
	CHECK(read(socket, &count, sizeof count) == sizeof count && count == 3);
	return 0;
}
