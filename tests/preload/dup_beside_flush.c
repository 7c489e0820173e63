/* A thread duplicates an eventfd while other threads call stdio. It does not wait for them, not
 * even for a thread that flushes all streams and itself waits for a third thread that reads from
 * one. */
#include "../c/check.h"

static int ends[2], counter;
static FILE *stream;
static volatile int has_copied;

static void *reads(void *nothing)
{
	CHECK(fgetc(stream) == 'x');
	return nothing;
}

static void *flushes(void *nothing)
{
	fflush(NULL);
	return nothing;
}

static void *copies(void *nothing)
{
	int copy = dup(counter), third = fcntl(counter, F_DUPFD_CLOEXEC, 40);
	CHECK(copy >= 0 && third >= 40);
	CHECK(dup2(counter, copy) == copy);
	close(copy), close(third);
	has_copied = 1;
	return nothing;
}

int main(void)
{
	pthread_t threads[3];
	int times, at;
	alarm(200);
	CHECK(pipe(ends) == 0 && (stream = fdopen(ends[0], "r")) != NULL);
	CHECK((counter = eventfd(0, 0)) >= 0);
	CHECK(pthread_create(&threads[0], NULL, reads, NULL) == 0);
	sleep_ms(100);
	CHECK(pthread_create(&threads[1], NULL, flushes, NULL) == 0);
	sleep_ms(100);
	CHECK(pthread_create(&threads[2], NULL, copies, NULL) == 0);
	for (times = 0; times < 10000 && !has_copied; times++)
		sleep_ms(10);
	CHECK(has_copied);
	CHECK(write(ends[1], "x", 1) == 1);
	for (at = 0; at < 3; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	return 0;
}
