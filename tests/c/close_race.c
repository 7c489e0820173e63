/* Threads use, duplicate and close the same few fds concurrently. No call uses a freed object, and
 * all results are those of an open or a closed fd. */
#include "check.h"

enum { FDS = 4, ROUNDS = 20000, THREADS = 4 };

static int base;

static void *storms(void *seed)
{
	unsigned state = (unsigned)(uintptr_t)seed;
	int round;
	for (round = 0; round < ROUNDS; round++) {
		uint64_t value = 1;
		struct pollfd entry;
		int fd = base + rand_r(&state) % FDS, other = base + rand_r(&state) % FDS;
		ssize_t result = 0;
		errno = 0;
		switch (rand_r(&state) % 7) {
		case 0:
			result = write(fd, &value, 8);
			break;
		case 1:
			result = read(fd, &value, 8);
			break;
		case 2:
			if (fd != other)
				result = dup2(fd, other);
			break;
		case 3:
			result = close(fd);
			break;
		case 4:
			result = eventfd(0, EFD_NONBLOCK);
			/* Another fd may have been closed meanwhile; keep to the test's own. */
			if (result >= base + FDS)
				CHECK(close((int)result) == 0);
			result = 0;
			break;
		case 5:
			entry.fd = fd;
			entry.events = POLLIN;
			CHECK(poll(&entry, 1, 0) >= 0);
			CHECK(!(entry.revents & ~(POLLIN | POLLNVAL)));
			break;
		case 6:
			result = fcntl(fd, F_GETFL);
			CHECK(result == -1 || result == (O_RDWR | O_NONBLOCK));
			break;
		}
		CHECK(result >= 0 || errno == EBADF || errno == EAGAIN || errno == EBUSY);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	int at, kept;
	CHECK(close_range(3, ~0U, 0) == 0);
	base = eventfd(0, EFD_NONBLOCK);
	for (at = 1; at < FDS; at++)
		CHECK(eventfd(0, EFD_NONBLOCK) == base + at);
	for (at = 0; at < THREADS; at++)
		CHECK(pthread_create(&threads[at], NULL, storms, (void *)(uintptr_t)(at + 1)) == 0);
	for (at = 0; at < THREADS; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	/* No other fd is left open. */
	for (at = 0; at < FDS; at++)
		close(base + at);
	kept = dup(0);
	CHECK(kept == base);
	return 0;
}
