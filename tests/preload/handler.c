/* A signal handler writes an eventfd, as in glib's main loop. */
#include "../c/check.h"
#include <sys/time.h>

static int counter;
static volatile sig_atomic_t sent;

static void writes(int signal)
{
	int saved = errno;
	uint64_t one = 1;
	(void)signal;
	CHECK(write(counter, &one, sizeof one) == sizeof one);
	sent++;
	errno = saved;
}

int main(void)
{
	struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
	struct epoll_event event;
	uint64_t value, got = 0;
	int set = epoll_create1(0);
	counter = eventfd(0, EFD_NONBLOCK);
	CHECK(add(set, counter, EPOLLIN | EPOLLET, 1) == 0);
	CHECK(signal(SIGALRM, writes) != SIG_ERR);
	CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
	while (got < 300) {
		int ready = epoll_wait(set, &event, 1, 10000);
		CHECK(ready == 1 || (ready == -1 && errno == EINTR));
		if (read(counter, &value, sizeof value) == sizeof value)
			got += value;
		else
			CHECK(errno == EAGAIN);
	}
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	if (read(counter, &value, sizeof value) == sizeof value)
		got += value;
	CHECK(got == (uint64_t)sent);
	return 0;
}
