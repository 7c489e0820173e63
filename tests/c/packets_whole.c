/* A read with room for a packet of a pipe returns the whole packet, even if another thread has read
 * the packet that was first when the call began. */
#include "check.h"
#include <sched.h>

enum { PACKETS = 40000, SMALL = 100, LARGE = 4000, ROOM = 1 << 16 };

static int ends[2], got, cut;

static void *reads(void *nothing)
{
	char *room = malloc(ROOM);
	ssize_t bytes;
	(void)nothing;
	CHECK(room != NULL);
	while ((bytes = read(ends[0], room, ROOM)) != 0) {
		if (bytes < 0) {
			CHECK(errno == EAGAIN);
			sched_yield();
			continue;
		}
		__atomic_fetch_add(&got, 1, __ATOMIC_RELAXED);
		if (bytes != SMALL && bytes != LARGE)
			__atomic_fetch_add(&cut, 1, __ATOMIC_RELAXED);
	}
	free(room);
	return NULL;
}

static void exchange(int flags)
{
	static char packet[LARGE];
	pthread_t readers[2];
	got = cut = 0;
	CHECK(pipe2(ends, O_DIRECT) == 0);
	CHECK(fcntl(ends[0], F_SETFL, O_DIRECT | flags) == 0);
	for (int at = 0; at < 2; at++)
		CHECK(pthread_create(&readers[at], NULL, reads, NULL) == 0);
	for (int at = 0; at < PACKETS; at++) {
		ssize_t size = at % 2 ? SMALL : LARGE;
		CHECK(write(ends[1], packet, (size_t)size) == size);
		if (at % 7 == 0)
			sched_yield();
	}
	CHECK(close(ends[1]) == 0);
	for (int at = 0; at < 2; at++)
		CHECK(pthread_join(readers[at], NULL) == 0);
	CHECK(close(ends[0]) == 0);
	CHECK(got == PACKETS);
	CHECK(cut == 0);
}

int main(void)
{
	exchange(0);
	exchange(O_NONBLOCK);
	return 0;
}
