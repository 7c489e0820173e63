/* Reads and writes whose buffers end in unmapped memory. Pipes move whole pages, and sockets move
 * whole messages or fail. */
#include "check.h"

enum { PAGE = 4096 };

/* Returns the last `there` bytes of a page that an unmapped one follows. */
static char *before_nothing(size_t there)
{
	static char *memory;
	if (memory == NULL) {
		memory = mmap(NULL, 65 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(memory != MAP_FAILED && mprotect(memory + 64 * PAGE, PAGE, PROT_NONE) == 0);
	}
	return memory + 64 * PAGE - there;
}

static int ends[2];

enum { PIPE, PACKETS, SOCKETS };

static void make(int kind)
{
	if (kind == SOCKETS)
		CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
	else
		CHECK(pipe2(ends, O_NONBLOCK | (kind == PACKETS ? O_DIRECT : 0)) == 0);
}

static void unmake(void)
{
	close(ends[0]);
	close(ends[1]);
}

static void put(size_t count)
{
	static char bytes[40 * PAGE];
	CHECK(write(ends[1], bytes, count) == (ssize_t)count);
}

/* All calls that read, and all calls that write. */
enum { READ, READV, READV_OF_TWO, RECV, RECVMSG, PEEK, READS };
enum { WRITE, WRITEV, WRITEV_OF_TWO, SEND, SENDMSG, WRITES };

static long count_of(int end)
{
	int count;
	CHECK(ioctl(ends[end], FIONREAD, &count) == 0);
	return count;
}

/* Reads `asked` bytes into a buffer of which `there` bytes are mapped. */
static ssize_t take(int how, size_t there, size_t asked)
{
	char *place = before_nothing(there);
	struct iovec one = {place, asked}, two[2] = {{place, there / 2}, {place + there / 2, asked - there / 2}};
	struct msghdr message;
	memset(&message, 0, sizeof message);
	message.msg_iov = two;
	message.msg_iovlen = 2;
	switch (how) {
	case READ:
		return read(ends[0], place, asked);
	case READV:
		return readv(ends[0], &one, 1);
	case READV_OF_TWO:
		return readv(ends[0], two, 2);
	case RECV:
		return recv(ends[0], place, asked, 0);
	case RECVMSG:
		return recvmsg(ends[0], &message, 0);
	default:
		return recv(ends[0], place, asked, MSG_PEEK);
	}
}

/* Writes `asked` bytes of which `there` are mapped. */
static ssize_t give(int how, size_t there, size_t asked)
{
	char *place = before_nothing(there);
	struct iovec one = {place, asked}, two[2] = {{place, there / 2}, {place + there / 2, asked - there / 2}};
	struct msghdr message;
	memset(&message, 0, sizeof message);
	message.msg_iov = two;
	message.msg_iovlen = 2;
	switch (how) {
	case WRITE:
		return write(ends[1], place, asked);
	case WRITEV:
		return writev(ends[1], &one, 1);
	case WRITEV_OF_TWO:
		return writev(ends[1], two, 2);
	case SEND:
		return send(ends[1], place, asked, 0);
	default:
		return sendmsg(ends[1], &message, 0);
	}
}

/* Checks the results of all reads after writes of the sizes in `pieces`. An expected -1 is EFAULT.
 */
static void reads(int kind, const size_t *pieces, size_t there, size_t asked, long expected)
{
	int how, blocking;
	for (blocking = 0; blocking < 2; blocking++)
		for (how = 0; how < (kind == SOCKETS ? READS : RECV); how++) {
			const size_t *piece;
			long before, result;
			make(kind);
			for (piece = pieces; *piece > 0; piece++)
				put(*piece);
			if (blocking)
				CHECK(fcntl(ends[0], F_SETFL, 0) == 0);
			before = count_of(0);
			errno = 0;
			result = take(how, there, asked);
			if (result != expected || (result < 0 && errno != EFAULT)) {
				fprintf(stderr, "kind %d, how %d, %zu of %zu: %ld, expected %ld\n", kind, how, there,
					asked, result, expected);
				exit(1);
			}
			if (result > 0 && how != PEEK)
				before -= result;
			CHECK(count_of(0) == before);
			unmake();
		}
}

/* Checks the results of all writes after a write of `first` bytes. */
static void writes(int kind, size_t first, size_t there, size_t asked, long expected)
{
	int how, blocking;
	for (blocking = 0; blocking < 2; blocking++)
		for (how = 0; how < (kind == SOCKETS ? WRITES : SEND); how++) {
			long result;
			make(kind);
			if (first > 0)
				put(first);
			if (blocking)
				CHECK(fcntl(ends[1], F_SETFL, 0) == 0);
			errno = 0;
			result = give(how, there, asked);
			if (result != expected || (result < 0 && errno != EFAULT)) {
				fprintf(stderr, "kind %d, how %d, %zu of %zu after %zu: %ld, expected %ld\n", kind, how,
					there, asked, first, result, expected);
				exit(1);
			}
			CHECK(count_of(0) == (long)first + (result > 0 ? result : 0));
			unmake();
		}
}

#define PIECES(...) ((const size_t[]){__VA_ARGS__, 0})

int main(void)
{
	/* One page: the call moves all the bytes that it asks for, or none. */
	reads(PIPE, PIECES(100), 1, 100, -1);
	reads(PIPE, PIECES(100), 99, 200, -1);
	reads(PIPE, PIECES(100), 100, 200, 100);
	reads(PIPE, PIECES(100), 0, 8, -1);
	reads(PIPE, PIECES(100), 40, 50, -1);
	/* Several pages. */
	reads(PIPE, PIECES(PAGE, PAGE, PAGE), 1, 3 * PAGE, -1);
	reads(PIPE, PIECES(PAGE, PAGE, PAGE), PAGE - 1, 3 * PAGE, -1);
	reads(PIPE, PIECES(PAGE, PAGE, PAGE), PAGE, 3 * PAGE, PAGE);
	reads(PIPE, PIECES(PAGE, PAGE, PAGE), 2 * PAGE + 5, 3 * PAGE, 2 * PAGE);
	reads(PIPE, PIECES(PAGE, PAGE, PAGE), 2 * PAGE + 5, 2 * PAGE + 6, 2 * PAGE);
	reads(PIPE, PIECES(3000, 3000), 4000, 6000, 3000);
	reads(PIPE, PIECES(2 * PAGE + 10), 2 * PAGE + 10, 30 * PAGE, 2 * PAGE + 10);
	reads(PACKETS, PIECES(100, 100), 50, 100, -1);
	reads(PACKETS, PIECES(100, 100), 100, 300, 100);
	/* Sockets: the unit is one send. */
	reads(SOCKETS, PIECES(100), 1, 100, -1);
	reads(SOCKETS, PIECES(100), 0, 1, -1);
	reads(SOCKETS, PIECES(100, 50), 149, 200, 100);
	reads(SOCKETS, PIECES(100, 50), 150, 200, 150);
	reads(SOCKETS, PIECES(3 * PAGE), 2 * PAGE, 3 * PAGE, -1);
	reads(SOCKETS, PIECES(3 * PAGE, PAGE), 3 * PAGE + 1, 4 * PAGE, 3 * PAGE);

	writes(PIPE, 0, 1, 100, -1);
	writes(PIPE, 0, 0, 1, -1);
	writes(PIPE, 0, 2 * PAGE + 5, 3 * PAGE, 2 * PAGE);
	writes(PIPE, 0, PAGE, PAGE + 1, PAGE);
	/* Less than a page is appended to the last page. */
	writes(PIPE, 10, 60, 100, -1);
	writes(PIPE, 10, PAGE - 1, PAGE + 50, 50);
	writes(PIPE, 10, 2 * PAGE + 100, 3 * PAGE + 50, 2 * PAGE + 50);
	writes(PIPE, PAGE - 10, 2 * PAGE + 100, 3 * PAGE + 50, 2 * PAGE);
	writes(PACKETS, 10, 2 * PAGE + 100, 3 * PAGE + 50, 2 * PAGE);
	writes(SOCKETS, 0, 1, 100, -1);
	writes(SOCKETS, 0, 0, 1, -1);
	writes(SOCKETS, 10, 36543, 40000, -1);
	writes(SOCKETS, 10, 36544, 40000, 36544);

	/* An empty or full pipe, and the end of a stream, are reported before EFAULT. */
	make(PIPE);
	FAILS(take(READ, 0, 8), EAGAIN);
	FAILS(take(READV, 4, 8), EAGAIN);
	while (write(ends[1], before_nothing(PAGE), PAGE) == PAGE)
		;
	FAILS(give(WRITE, 0, 8), EAGAIN);
	FAILS(give(WRITEV, 4, 8), EAGAIN);
	unmake();
	make(PIPE);
	close(ends[1]);
	CHECK(take(READ, 0, 8) == 0 && take(READV, 4, 8) == 0);
	close(ends[0]);
	signal(SIGPIPE, SIG_IGN);
	make(PIPE);
	close(ends[0]);
	FAILS(give(WRITE, 0, 8), EPIPE);
	FAILS(give(WRITEV, 4, 8), EPIPE);
	close(ends[1]);
	make(SOCKETS);
	FAILS(take(READ, 0, 8), EAGAIN);
	FAILS(take(RECVMSG, 4, 8), EAGAIN);
	while (write(ends[1], before_nothing(PAGE), PAGE) == PAGE)
		;
	FAILS(give(WRITE, 0, 8), EAGAIN);
	FAILS(give(SENDMSG, 4, 8), EAGAIN);
	unmake();
	make(SOCKETS);
	close(ends[1]);
	CHECK(take(READ, 0, 8) == 0 && take(RECV, 4, 8) == 0);
	close(ends[0]);
	make(SOCKETS);
	close(ends[0]);
	FAILS(give(WRITE, 0, 8), EPIPE);
	FAILS(give(SEND, 4, 8), EPIPE);
	close(ends[1]);
	return 0;
}
