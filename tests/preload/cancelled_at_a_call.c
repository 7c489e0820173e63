/* A thread that is cancelled at the beginning of a call ends at once: further signals do not
 * interrupt its cleanup handlers, and pthread_cancel(3) does not wait for their end. */
#include "../c/check.h"
#include <sched.h>
#include <stdatomic.h>

enum { ROUNDS = 300, LONGEST = 1000 };

static int counter;
static atomic_int runs, is_cancelled;

/* A cleanup handler that runs as long as the call that cancels the thread. */
static void cleans_up(void *nothing)
{
	const struct timespec moment = {0, 1000000};
	int turn, interrupted = 0;
	(void)nothing;
	for (turn = 0; turn < LONGEST && !atomic_load(&is_cancelled); turn++)
		if (nanosleep(&moment, NULL) == -1 && errno == EINTR)
			interrupted++;
	/* One or two signals may have been in flight already. */
	CHECK(interrupted <= 5);
}

static void *calls_on_and_on(void *nothing)
{
	uint64_t count;
	pthread_cleanup_push(cleans_up, nothing);
	for (;;) {
		atomic_store(&runs, 1);
		CHECK(read(counter, &count, sizeof count) == -1 && errno == EAGAIN);
	}
	pthread_cleanup_pop(0);
	return NULL;
}

int main(void)
{
	int round;
	counter = eventfd(0, EFD_NONBLOCK);
	CHECK(counter >= 0);
	for (round = 0; round < ROUNDS; round++) {
		pthread_t thread;
		void *result;
		atomic_store(&runs, 0);
		atomic_store(&is_cancelled, 0);
		CHECK(pthread_create(&thread, NULL, calls_on_and_on, NULL) == 0);
		while (!atomic_load(&runs))
			sched_yield();
		CHECK(pthread_cancel(thread) == 0);
		atomic_store(&is_cancelled, 1);
		CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	}
	return 0;
}
