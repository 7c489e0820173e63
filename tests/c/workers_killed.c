/* Workers wait in sets of their own for a semaphore that all share. They are killed at any moment,
 * and others take their places. The remaining workers continue, and only units that a killed worker
 * has just taken are lost. The same with a semaphore that has a maximum, where there is one. */
#include "check.h"
#include <sched.h>
#include <sys/wait.h>

enum { WORKERS = 3, UNITS = 800, KILLS = 40 };

#ifndef EFD_IOC_SET_MAXIMUM
#define EFD_IOC_SET_MAXIMUM _IOW('J', 0, uint64_t)
#endif

static int semaphore;
static long *done;
static pid_t workers[WORKERS];

static void works(void)
{
	struct epoll_event event;
	uint64_t unit;
	int set = epoll_create1(0);
	CHECK(set >= 0 && add(set, semaphore, EPOLLIN, 1) == 0);
	for (;;) {
		CHECK(epoll_wait(set, &event, 1, -1) == 1);
		if (read(semaphore, &unit, sizeof unit) == sizeof unit)
			__atomic_fetch_add(done, 1, __ATOMIC_SEQ_CST);
		else
			CHECK(errno == EAGAIN);
	}
}

static void begin(int at)
{
	workers[at] = fork();
	CHECK(workers[at] >= 0);
	if (workers[at] == 0)
		works();
}

static void end(int at)
{
	int status;
	CHECK(kill(workers[at], SIGKILL) == 0);
	CHECK(waitpid(workers[at], &status, 0) == workers[at]);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static long finished(void)
{
	return __atomic_load_n(done, __ATOMIC_SEQ_CST);
}

static void round_of(int with_maximum)
{
	uint64_t one = 1, maximum = 20;
	unsigned random = 1;
	int at, kills = 0;
	long sent = 0;
	*done = 0;
	semaphore = eventfd(0, EFD_SEMAPHORE | EFD_NONBLOCK);
	CHECK(semaphore >= 0);
	if (with_maximum && ioctl(semaphore, EFD_IOC_SET_MAXIMUM, &maximum) != 0) {
		CHECK(errno == ENOTTY && close(semaphore) == 0);
		return;
	}
	for (at = 0; at < WORKERS; at++)
		begin(at);
	while (sent < UNITS) {
		/* A full semaphore fails the write: the workers are behind. */
		if (sent - finished() - kills < 16 && write(semaphore, &one, sizeof one) == sizeof one)
			sent++;
		else
			sched_yield();
		random = random * 1103515245 + 12345;
		if (kills < KILLS && (random >> 16) % (UNITS / KILLS) == 0) {
			end(at = (int)((random >> 8) % WORKERS));
			kills++;
			begin(at);
		}
	}
	/* A worker is woken for each remaining unit. */
	while (finished() < sent - kills)
		sleep_ms(1);
	for (;;) {
		struct pollfd entry = {semaphore, POLLIN, 0};
		CHECK(poll(&entry, 1, 0) >= 0);
		if (!entry.revents)
			break;
		sleep_ms(1);
	}
	for (at = 0; at < WORKERS; at++)
		end(at);
	CHECK(finished() <= sent && finished() >= sent - kills);
	CHECK(close(semaphore) == 0);
}

int main(void)
{
	alarm(300);
	done = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(done != MAP_FAILED);
	round_of(0);
	round_of(1);
	return 0;
}
