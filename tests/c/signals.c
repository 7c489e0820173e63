/* epoll_pwait(2) unblocks a signal during the wait, and is never restarted. */
#include "check.h"

static volatile sig_atomic_t seen;

static void on_signal(int signal)
{
	(void)signal;
	seen++;
}

int main(void)
{
	struct epoll_event event;
	struct sigaction action;
	struct timespec soon = {0, 20000000};
	struct pollfd entry = {0, POLLIN, 0};
	sigset_t held, none;
	int epfd = epoll_create1(0), fd = eventfd(0, 0);
	memset(&action, 0, sizeof action);
	action.sa_handler = on_signal;
	action.sa_flags = SA_RESTART;
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(add(epfd, fd, EPOLLIN, 0) == 0);
	sigemptyset(&none);
	sigemptyset(&held);
	sigaddset(&held, SIGUSR1);
	CHECK(pthread_sigmask(SIG_BLOCK, &held, NULL) == 0);
	CHECK(pthread_kill(pthread_self(), SIGUSR1) == 0);
	CHECK(epoll_wait(epfd, &event, 1, 20) == 0 && seen == 0);
	FAILS(epoll_pwait(epfd, &event, 1, -1, &none), EINTR);
	CHECK(seen == 1);
	CHECK(epoll_pwait(epfd, &event, 1, 20, &none) == 0);
	CHECK(epoll_pwait2(epfd, &event, 1, &soon, &none) == 0);
	CHECK(pthread_kill(pthread_self(), SIGUSR1) == 0);
	entry.fd = fd;
	FAILS(ppoll(&entry, 1, NULL, &none), EINTR);
	CHECK(seen == 2);
	/* A ready event comes first, and the signal stays pending. */
	CHECK(pthread_kill(pthread_self(), SIGUSR1) == 0);
	CHECK(eventfd_write(fd, 1) == 0);
	CHECK(epoll_pwait(epfd, &event, 1, -1, &none) == 1 && seen == 2);
	return 0;
}
