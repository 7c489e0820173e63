/* A set gets its first member of another kind, and threads are woken from it to sleep elsewhere.
 * Meanwhile other threads that wait in it find the ready members, also with room for one event, and
 * wait no longer than their limits. */
#include "check.h"
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/syscall.h>

static int epfd, sockets[2];
static atomic_int is_added, tid;
static sem_t in_handler, go_on, looked;

static void waits_for_the_end(int signal)
{
	(void)signal;
	sem_post(&in_handler);
	while (sem_wait(&go_on) == -1)
		;
}

static void *waits(void *unused)
{
	struct epoll_event event;
	tid = (int)syscall(SYS_gettid);
	FAILS(epoll_wait(epfd, &event, 1, 600000), EINTR);
	return unused;
}

static void *looks(void *unused)
{
	struct epoll_event events[2], event;
	sigset_t mask;
	char byte;
	int turn;
#ifndef KERNEL_ONLY
	struct timespec begun, now;
	CHECK(clock_gettime(CLOCK_MONOTONIC, &begun) == 0);
#endif
	for (turn = 0; turn < 200; turn++) {
		CHECK(epoll_wait(epfd, &event, 1, 0) == 1);
		CHECK(event.data.u64 == 1);
		if (turn == 0)
			sem_post(&looked);
		if (turn % 20 == 0)
			sleep_ms(10);
	}
	/* Without a ready member a wait ends at its limit, not earlier and not later. */
	CHECK(read(sockets[0], &byte, 1) == 1);
	sigemptyset(&mask);
	for (turn = 1; turn <= 2; turn++) {
		CHECK(epoll_wait(epfd, events, turn, 0) == 0);
		CHECK(epoll_pwait(epfd, events, turn, 0, &mask) == 0);
		CHECK(epoll_wait(epfd, events, turn, 20) == 0);
		CHECK(epoll_pwait(epfd, events, turn, 20, &mask) == 0);
	}
#ifndef KERNEL_ONLY
	/* Threads are still being woken: the ADD waits a second for the thread in the handler. A busy machine may be slower. */
	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	if ((now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000 < 500)
		CHECK(!atomic_load(&is_added));
#endif
	CHECK(sem_post(&go_on) == 0);
	return unused;
}

int main(void)
{
	struct sigaction action;
	pthread_t waiting, looking;
	int counter = eventfd(0, 0);

	memset(&action, 0, sizeof action);
	action.sa_handler = waits_for_the_end;
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(sem_init(&in_handler, 0, 0) == 0 && sem_init(&go_on, 0, 0) == 0);
	CHECK(sem_init(&looked, 0, 0) == 0);
	epfd = epoll_create1(0);
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) == 0);
	CHECK(add(epfd, sockets[0], EPOLLIN, 1) == 0);

	/* A thread that stays in its wait as long as its handler runs. */
	CHECK(pthread_create(&waiting, NULL, waits, NULL) == 0);
	while (tid == 0)
		sleep_ms(1);
	sleep_ms(100);
	wait_until_asleep(tid);
	CHECK(pthread_kill(waiting, SIGUSR1) == 0);
	while (sem_wait(&in_handler) == -1)
		;
	CHECK(write(sockets[1], "x", 1) == 1);
	CHECK(pthread_create(&looking, NULL, looks, NULL) == 0);
	while (sem_wait(&looked) == -1)
		;
	CHECK(add(epfd, counter, EPOLLIN, 2) == 0);
	atomic_store(&is_added, 1);
	CHECK(pthread_join(looking, NULL) == 0);
	CHECK(pthread_join(waiting, NULL) == 0);
	return 0;
}
