/* select(2) of more fds than the process can have: the kernel looks at no more of a set than its table of fds has room
 * for. The memory behind the set was writable once, and is unmapped by then. */
#include "../c/check.h"
#include <limits.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { PAGE = 4096 };
static int counter;

static void *read_into(void *place)
{
	CHECK(write(counter, &(uint64_t){1}, 8) == 8);
	CHECK(read(counter, place, 8) == 8);
	return NULL;
}

int main(void)
{
	char *memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fd_set *set = (fd_set *)(memory + PAGE) - 1;
	struct rlimit limit;
	pthread_t thread;
	int round;
	alarm(200);
	CHECK(memory != MAP_FAILED && getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	CHECK((counter = eventfd(0, EFD_NONBLOCK)) >= 0);
	CHECK(pthread_create(&thread, NULL, read_into, memory + PAGE) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(munmap(memory + PAGE, PAGE) == 0);
	for (round = 0; round < 3; round++) {
		/* An fd that is not user-level, and one that is. */
		int line[2], fd;
		CHECK(pipe(line) == 0);
		fd = round ? counter : line[0];
		FD_ZERO(set);
		FD_SET(fd, set);
		CHECK(select(INT_MAX, set, NULL, NULL, &(struct timeval){0, 0}) == 0 && !FD_ISSET(fd, set));
		FD_SET(fd, set);
		CHECK(pselect(INT_MAX, set, NULL, NULL, &(struct timespec){0, 0}, NULL) == 0);
		FD_SET(fd, set);
		CHECK(syscall(SYS_pselect6, (long)INT_MAX, set, NULL, NULL, &(struct timespec){0, 0}, NULL) == 0);
		CHECK(close(line[0]) == 0 && close(line[1]) == 0);
	}
	return 0;
}
