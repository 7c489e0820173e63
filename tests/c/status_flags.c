/* Threads change O_NONBLOCK concurrently. Afterwards F_GETFL and the behaviour of reads agree. */
#include "check.h"

enum { ROUNDS = 4000 };

static int fd;
static pthread_barrier_t start, end;

static void *changes(void *flags)
{
	for (int at = 0; at < ROUNDS; at++) {
		pthread_barrier_wait(&start);
		CHECK(fcntl(fd, F_SETFL, (int)(intptr_t)flags) == 0);
		pthread_barrier_wait(&end);
	}
	return NULL;
}

static void nothing(int signal)
{
	(void)signal;
}

/* Returns whether a read of `fd`, which is empty, fails at once. */
static int is_nonblocking(void)
{
	uint64_t room;
	timer_t timer;
	struct sigevent alarm = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
	/* Periodic, because the first signal may come before the read. */
	struct itimerspec soon = {{0, 20000000}, {0, 2000000}}, never = {{0, 0}, {0, 0}};
	CHECK(timer_create(CLOCK_MONOTONIC, &alarm, &timer) == 0);
	CHECK(timer_settime(timer, 0, &soon, NULL) == 0);
	CHECK(read(fd, &room, sizeof room) == -1 && (errno == EAGAIN || errno == EINTR));
	int is = errno == EAGAIN;
	CHECK(timer_settime(timer, 0, &never, NULL) == 0 && timer_delete(timer) == 0);
	return is;
}

static void change_at_once(void)
{
	pthread_t threads[2];
	CHECK(pthread_create(&threads[0], NULL, changes, (void *)0) == 0);
	CHECK(pthread_create(&threads[1], NULL, changes, (void *)(intptr_t)O_NONBLOCK) == 0);
	for (int at = 0; at < ROUNDS; at++) {
		uint64_t room;
		pthread_barrier_wait(&start);
		pthread_barrier_wait(&end);
		if (fcntl(fd, F_GETFL) & O_NONBLOCK)
			FAILS(read(fd, &room, sizeof room), EAGAIN);
		else if (at % 50 == 0)
			CHECK(!is_nonblocking());
	}
	for (int at = 0; at < 2; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
}

int main(void)
{
	int ends[2];
	struct sigaction action = {.sa_handler = nothing};
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(pthread_barrier_init(&start, NULL, 3) == 0);
	CHECK(pthread_barrier_init(&end, NULL, 3) == 0);
	fd = eventfd(0, 0);
	CHECK(fd >= 0);
	change_at_once();
	CHECK(pipe(ends) == 0);
	fd = ends[0];
	change_at_once();
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	fd = ends[0];
	change_at_once();
	return 0;
}
