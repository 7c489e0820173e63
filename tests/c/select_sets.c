/* select(2): the bits of the three sets that it checks, counts and writes. */
#include "check.h"

#include <limits.h>
#include <sys/mman.h>
#include <sys/syscall.h>

/* libupoll has no raw system calls. */
#if defined SYS_select && !defined UPOLL_REDIRECT
#define SYSTEM_CALLS 1
#else
#define SYSTEM_CALLS 0
#endif

static struct timeval now(void)
{
	struct timeval time;
	memset(&time, 0, sizeof time);
	return time;
}

/* Returns a word of a set, to compare it whole. */
static unsigned long word(const fd_set *set, int at)
{
	unsigned long words[FD_SETSIZE / 8 / sizeof(long)];
	memcpy(words, set, sizeof words);
	return words[at];
}

static void only(fd_set *set, int one, int other)
{
	FD_ZERO(set);
	if (one >= 0)
		FD_SET(one, set);
	if (other >= 0)
		FD_SET(other, set);
}

/* The C library reads 32 bits of the microseconds, cuts a time that is too long, and writes back what it has made of it.
 * The system call, where there is one, does none of this. */
static void limits_of_any_size(int ready)
{
	static const struct {
		long seconds, microseconds;
		/* The function, then the system call: whether it succeeds, and the most seconds that may be left. */
		struct {
			int succeeds;
			long left;
		} by[2];
	} limits[] = {
		{0, 1L << 32, {{1, 0}, {1, 4294}}},
		{0, (1L << 32) + 5, {{1, 0}, {1, 4294}}},
		{5, (1L << 32) + 2000000, {{1, 6}, {1, 4301}}},
		{0, INT32_MAX, {{1, 2147}, {1, 2147}}},
		{0, INT32_MAX + 1L, {{0, 0}, {1, 2147}}},
		{0, LONG_MAX, {{0, 0}, {1, LONG_MAX / 1000000}}},
		{0, LONG_MIN, {{1, 0}, {0, 0}}},
		{0, -1, {{0, 0}, {0, 0}}},
		{-1, 0, {{0, 0}, {0, 0}}},
		{-1, 3000000, {{0, 0}, {1, 2}}},
		{LONG_MAX - 1, 1000000, {{1, LONG_MAX}, {1, LONG_MAX}}},
		{LONG_MAX, 1000000, {{1, LONG_MAX}, {0, LONG_MAX}}},
		{LONG_MAX, LONG_MAX, {{0, LONG_MAX}, {0, LONG_MAX}}},
	};
	size_t each;
	int by, result;
	for (each = 0; each < sizeof limits / sizeof *limits; each++)
		for (by = 0; by < SYSTEM_CALLS + 1; by++) {
			struct timeval time = {limits[each].seconds, limits[each].microseconds};
			long left = limits[each].by[by].left;
			fd_set in;
			only(&in, ready, -1);
#if SYSTEM_CALLS
			if (by)
				result = (int)syscall(SYS_select, ready + 1, &in, NULL, NULL, &time);
			else
#endif
				result = select(ready + 1, &in, NULL, NULL, &time);
			if (limits[each].by[by].succeeds) {
				CHECK(result == 1 && FD_ISSET(ready, &in));
				CHECK(time.tv_sec <= left && time.tv_sec >= left / 2);
				CHECK(time.tv_usec >= 0 && time.tv_usec < 1000000);
			} else {
				CHECK(result == -1 && errno == EINVAL);
				CHECK(time.tv_sec == limits[each].seconds);
				CHECK(time.tv_usec == limits[each].microseconds);
			}
		}
}

int main(void)
{
	int idle = eventfd(0, 0), ready = eventfd(1, 0), full = eventfd(0, EFD_NONBLOCK), high, at;
	long page = sysconf(_SC_PAGESIZE);
	unsigned char *pages = mmap(NULL, 2 * (size_t)page, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct timeval time = now();
	fd_set in, out, except, *at_the_end, *read_only;
	uint64_t most = UINT64_MAX - 1;

	CHECK(idle >= 0 && ready >= 0 && full >= 0 && pages != MAP_FAILED);
	CHECK(write(full, &most, sizeof most) == sizeof most);
	high = fcntl(ready, F_DUPFD, 200);
	CHECK(high >= 200);

	/* One fd counts once for each set that it is ready in. */
	only(&in, idle, ready);
	only(&out, ready, full);
	only(&except, ready, idle);
	CHECK(select(full + 1, &in, &out, &except, &time) == 2);
	CHECK(!FD_ISSET(idle, &in) && FD_ISSET(ready, &in));
	CHECK(FD_ISSET(ready, &out) && !FD_ISSET(full, &out));
	CHECK(!FD_ISSET(ready, &except) && !FD_ISSET(idle, &except));

	/* Fds from n on are not checked. Their bits are cleared in a word that is shared with lower fds.
	 */
	only(&in, ready, high);
	FD_SET(63, &in);
	FD_SET(64 * (1 + high / 64), &in);
	time = now();
	CHECK(select(ready + 1, &in, NULL, NULL, &time) == 1);
	CHECK(word(&in, 0) == 1UL << ready && FD_ISSET(high, &in));
	CHECK(FD_ISSET(64 * (1 + high / 64), &in));

	/* High fds, and the same file by two of them. */
	only(&in, ready, high);
	time = now();
	CHECK(select(high + 1, &in, NULL, NULL, &time) == 2);
	CHECK(FD_ISSET(ready, &in) && FD_ISSET(high, &in));
	CHECK(time.tv_sec == 0 && time.tv_usec == 0);

	/* With a ready fd the limit does not matter, whether there is one or not. */
	only(&in, idle, ready);
	CHECK(select(ready + 1, &in, NULL, NULL, NULL) == 1);
	CHECK(!FD_ISSET(idle, &in) && FD_ISSET(ready, &in));
	only(&in, idle, -1);
	time = now();
	time.tv_usec = 1000;
	CHECK(select(idle + 1, &in, NULL, NULL, &time) == 0 && word(&in, 0) == 0);
	CHECK(time.tv_sec == 0 && time.tv_usec == 0);

	/* The time that the call has taken is taken off the limit, also if an fd is ready at once, or the call fails. */
	only(&in, idle, ready);
	time.tv_sec = 1000;
	time.tv_usec = 1500000;
	CHECK(select(ready + 1, &in, NULL, NULL, &time) == 1);
	CHECK(time.tv_sec <= 1001 && time.tv_usec < 1000000);
	CHECK(time.tv_sec < 1001 || time.tv_usec < 500000);
	only(&in, ready, -1);
	time.tv_sec = 0;
	time.tv_usec = 1;
	CHECK(select(ready + 1, &in, NULL, NULL, &time) == 1);
	CHECK(time.tv_sec == 0 && time.tv_usec == 0);
	time.tv_sec = 1000;
	FAILS(select(-1, &in, NULL, NULL, &time), EINVAL);
	CHECK(time.tv_sec < 1000);
	limits_of_any_size(ready);

	/* A closed fd fails the call, and no set is written. */
	only(&in, ready, high + 1);
	time = now();
	FAILS(select(high + 2, &in, NULL, NULL, &time), EBADF);
	CHECK(FD_ISSET(ready, &in) && FD_ISSET(high + 1, &in));

	/* Only the words of the first n fds are read and written. */
	CHECK(mprotect(pages + page, (size_t)page, PROT_NONE) == 0);
	at_the_end = (fd_set *)(void *)(pages + page - sizeof(long));
	memset(at_the_end, 0, sizeof(long));
	pages[page - (long)sizeof(long) + ready / 8] |= (unsigned char)(1 << ready % 8);
	time = now();
	CHECK(select(ready + 1, at_the_end, NULL, NULL, &time) == 1);
	only(&in, ready, -1);
	FAILS(select(65, at_the_end, &in, NULL, &time), EFAULT);
	CHECK(FD_ISSET(ready, &in));

	/* The last set is read-only: those before it are written, and it is not. */
	only(&in, idle, ready);
	read_only = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(read_only != MAP_FAILED);
	only(read_only, idle, ready);
	CHECK(mprotect(read_only, (size_t)page, PROT_READ) == 0);
	FAILS(select(ready + 1, &in, read_only, NULL, &time), EFAULT);
	CHECK(!FD_ISSET(idle, &in) && FD_ISSET(ready, &in));
	CHECK(FD_ISSET(idle, read_only));

	for (at = 0; at < 3; at++)
		CHECK(close(at == 0 ? idle : at == 1 ? ready : full) == 0);
	CHECK(close(high) == 0);
	return 0;
}
