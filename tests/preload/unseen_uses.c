/* Uses of objects without a call that names their fds: kernel AIO, virtual machines, copies by
 * pidfd, other names of the C library's functions, and its own writes. */
#include "../c/check.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <linux/aio_abi.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <wordexp.h>

extern ssize_t __send(int fd, const void *bytes, size_t count, int flags);
extern int __clone(int (*function)(void *), void *stack, int flags, void *argument, ...);

#define KVM_IRQFD_ _IOW(0xAE, 0x76, char[32])
#define VHOST_SET_VRING_KICK_ _IOW(0xAF, 0x20, char[8])
#define VFIO_DEVICE_SET_IRQS_ _IO(';', 110)

static int has(int counter, uint64_t value)
{
	uint64_t count;
	return read(counter, &count, sizeof count) == sizeof count && count == value;
}

/* A completed request signals its eventfd. */
static void kernel_aio(void)
{
	aio_context_t context = 0;
	struct iocb request, poll_request, *requests[2] = {&request, &poll_request};
	struct io_event events[2];
	struct timespec soon = {10, 0};
	char path[] = "/tmp/unseen_uses.XXXXXX", bytes[512];
	int file = mkstemp(path), set, counter, polled;
	struct epoll_event event;
	CHECK(file >= 0 && unlink(path) == 0);
	CHECK(write(file, "0123456789", 10) == 10);
	if (syscall(SYS_io_setup, 8, &context) != 0)
		return;
	counter = (int)syscall(SYS_eventfd2, 0, EFD_NONBLOCK), polled = eventfd(0, 0);
	set = epoll_create1(0);
	CHECK(counter >= 0 && polled >= 0 && set >= 0);
	CHECK(add(set, counter, EPOLLIN | EPOLLET, 7) == 0);
	memset(&request, 0, sizeof request);
	request.aio_lio_opcode = IOCB_CMD_PREAD;
	request.aio_fildes = (unsigned)file;
	request.aio_buf = (uintptr_t)bytes, request.aio_nbytes = sizeof bytes;
	request.aio_flags = IOCB_FLAG_RESFD, request.aio_resfd = (unsigned)counter;
	memset(&poll_request, 0, sizeof poll_request);
	poll_request.aio_lio_opcode = IOCB_CMD_POLL;
	poll_request.aio_fildes = (unsigned)polled, poll_request.aio_buf = POLLIN;
	CHECK(syscall(SYS_io_submit, context, 2, requests) == 2);
	CHECK(epoll_wait(set, &event, 1, 60000) == 1 && event.data.u64 == 7);
	CHECK(has(counter, 1));
	CHECK(eventfd_write(polled, 1) == 0);
	CHECK(syscall(SYS_io_getevents, context, 2, 2, events, &soon) == 2);
	FAILS(syscall(SYS_io_submit, context, 1, nowhere()), EFAULT);
	requests[0] = nowhere();
	FAILS(syscall(SYS_io_submit, context, 1, requests), EFAULT);
	syscall(SYS_io_destroy, context);
	close(set), close(counter), close(polled), close(file);
}

/* The same through libaio, which makes the system call directly. */
static void aio_of_the_library(void)
{
	void *library = dlopen("libaio.so.1", RTLD_NOW | RTLD_GLOBAL);
	/* The function that a program linked to libaio calls. */
	int (*submit)(aio_context_t, long, struct iocb **);
	aio_context_t context = 0;
	struct iocb request, *requests[1] = {&request};
	char path[] = "/tmp/unseen_uses.XXXXXX", bytes[512];
	int file = mkstemp(path), counter = eventfd(0, 0), set = epoll_create1(0);
	struct epoll_event event;
	CHECK(file >= 0 && unlink(path) == 0 && counter >= 0 && set >= 0);
	if (library != NULL && syscall(SYS_io_setup, 8, &context) == 0) {
		submit = (int (*)(aio_context_t, long, struct iocb **))dlsym(RTLD_DEFAULT, "io_submit");
		CHECK(submit != NULL && write(file, "0123456789", 10) == 10);
		CHECK(add(set, counter, EPOLLIN, 8) == 0);
		memset(&request, 0, sizeof request);
		request.aio_lio_opcode = IOCB_CMD_PREAD;
		request.aio_fildes = (unsigned)file;
		request.aio_buf = (uintptr_t)bytes, request.aio_nbytes = sizeof bytes;
		request.aio_flags = IOCB_FLAG_RESFD, request.aio_resfd = (unsigned)counter;
		CHECK(submit(context, 1, requests) == 1);
		CHECK(epoll_wait(set, &event, 1, 60000) == 1 && event.data.u64 == 8);
		CHECK(has(counter, 1));
		CHECK(submit(0, 1, requests) == -EINVAL);
		syscall(SYS_io_destroy, context);
	}
	close(set), close(counter), close(file);
}

/* Reads from the kernel's file. */
static ssize_t raw_read(int fd, void *place, size_t count)
{
	ssize_t result;
#ifdef __x86_64__
	__asm__ volatile("syscall" : "=a"(result) : "0"(SYS_read), "D"(fd), "S"(place), "d"(count)
			 : "rcx", "r11", "memory");
#else
	result = read(fd, place, count);
#endif
	return result;
}

static int in_the_child(void *fd)
{
	uint64_t one = 1;
	return raw_read(*(int *)fd, &one, sizeof one) == sizeof one ? (int)one : 100;
}

static void by_other_names(void)
{
	static char stack[1 << 17] __attribute__((aligned(16)));
	char bytes[256];
	int pair[2], counter = eventfd(4, 0), status;
	pid_t child;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(__send(pair[0], "sent", 4, 0) == 4);
	CHECK(recv(pair[1], bytes, sizeof bytes, MSG_DONTWAIT) == 4 && memcmp(bytes, "sent", 4) == 0);
	child = __clone(in_the_child, stack + sizeof stack, SIGCHLD, &counter);
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 4);
	close(pair[0]), close(pair[1]), close(counter);
}

static void by_the_c_library(void)
{
	char bytes[4096], words_of[64];
	void *here[1] = {(void *)&by_the_c_library};
	int ends[2], counter, at;
	FILE *stream, *other;
	wordexp_t words;

	CHECK(pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
	backtrace_symbols_fd(here, 1, ends[1]);
	CHECK(read(ends[0], bytes, sizeof bytes) > 0);
	close(ends[0]), close(ends[1]);

	/* The shell inherits the fd. */
	CHECK(pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
	snprintf(words_of, sizeof words_of, "$(echo said >&%d; echo word)", ends[1] < 10 ? ends[1] : 9);
	if (ends[1] < 10) {
		CHECK(wordexp(words_of, &words, 0) == 0);
		CHECK(words.we_wordc == 1 && strcmp(words.we_wordv[0], "word") == 0);
		wordfree(&words);
		CHECK(read(ends[0], bytes, sizeof bytes) == 5 && memcmp(bytes, "said\n", 5) == 0);
	}
	close(ends[0]), close(ends[1]);

	/* Streams whose fd is closed, and then another file's. */
	stream = fopen("/dev/null", "w"), other = fopen("/dev/null", "w");
	CHECK(stream && other && pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
	at = fileno(stream);
	CHECK(close(at) == 0 && dup2(ends[1], at) == at);
	CHECK(fputs("hello", stream) >= 0 && fflush(stream) == 0);
	CHECK(read(ends[0], bytes, sizeof bytes) == 5 && memcmp(bytes, "hello", 5) == 0);
	close(ends[1]);
	CHECK(fclose(stream) == 0);
	CHECK(read(ends[0], bytes, sizeof bytes) == 0);
	close(ends[0]);
	CHECK(pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
	at = fileno(other);
	CHECK(close(at) == 0 && fcntl(ends[1], F_DUPFD, at) == at);
	CHECK(fputs("again", other) >= 0 && fclose(other) == 0);
	CHECK(read(ends[0], bytes, sizeof bytes) == 5 && memcmp(bytes, "again", 5) == 0);
	counter = dup(ends[1]);
	CHECK(counter >= 0);
	close(ends[0]), close(ends[1]), close(counter);
}

/* A copy by dup(2) gets the fd of a stream, which is closed. */
static void at_the_fd_of_a_stream(void)
{
	uint64_t value = 7;
	int counter = eventfd(0, EFD_NONBLOCK);
	FILE *stream = fopen("/dev/null", "w");
	CHECK(counter >= 0 && stream && close(fileno(stream)) == 0);
	CHECK(dup(counter) == fileno(stream));
	CHECK(fwrite(&value, sizeof value, 1, stream) == 1 && fclose(stream) == 0);
	CHECK(has(counter, 7));
	close(counter);
}

/* The copy refers to the same eventfd. */
static void by_pidfd(void)
{
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0), counter = eventfd(1, 0), copy;
	CHECK(counter >= 0);
	if (self < 0)
		return;
	copy = (int)syscall(SYS_pidfd_getfd, self, counter, 0);
	if (copy >= 0) {
		CHECK(has(copy, 1));
		CHECK(eventfd_write(counter, 3) == 0 && has(copy, 3));
		close(copy);
	}
	close(self), close(counter);
}

/* Requests that name eventfds. From then on the kernel serves these. */
static void by_request(unsigned long request)
{
	int before = eventfd(5, 0), after, file = open("/dev/null", O_RDONLY);
	char argument[64] = {0};
	uint64_t count = 0;
	CHECK(before >= 0 && file >= 0);
	FAILS(ioctl(file, request, argument), ENOTTY);
	CHECK(raw_read(before, &count, sizeof count) == sizeof count && count == 5);
	after = eventfd(6, 0);
	FAILS(syscall(SYS_ioctl, file, request, argument), ENOTTY);
	CHECK(raw_read(after, &count, sizeof count) == sizeof count && count == 6);
	close(before), close(after), close(file);
}

int main(void)
{
	alarm(200);
	kernel_aio();
	aio_of_the_library();
	by_other_names();
	by_the_c_library();
	at_the_fd_of_a_stream();
	by_pidfd();
	by_request(KVM_IRQFD_);
	by_request(VHOST_SET_VRING_KICK_);
	by_request(VFIO_DEVICE_SET_IRQS_);
	return 0;
}
