/* Uses that demote a pipe or a socket pair: streams, executed programs, messages, and calls that
 * only the kernel serves. */
#include "../c/rights.h"
#include <aio.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;

static void holds(int fd, const char *text)
{
	char buffer[64];
	ssize_t count = read(fd, buffer, sizeof buffer);
	CHECK(count == (ssize_t)strlen(text) && memcmp(buffer, text, (size_t)count) == 0);
}

static void makes(int fds[2], const char *text)
{
	CHECK(pipe(fds) == 0);
	CHECK(write(fds[1], text, strlen(text)) == (ssize_t)strlen(text));
}

static void done(int fds[2])
{
	close(fds[0]), close(fds[1]);
}

/* Reads the whole text: the output of a shell may come in several reads. */
static void says(int fd, const char *text)
{
	char buffer[64];
	size_t at = 0;
	while (at < strlen(text)) {
		ssize_t count = read(fd, buffer + at, sizeof buffer - at);
		CHECK(count > 0);
		at += (size_t)count;
	}
	CHECK(at == strlen(text) && memcmp(buffer, text, at) == 0);
}

static void send_over(int to, int fd)
{
	struct carrier carrier;
	struct mmsghdr message = {message_with(&carrier, fd), 0};
	CHECK(sendmmsg(to, &message, 1, 0) == 1);
}

static int prints(int fd, const char *format, ...)
{
	va_list arguments;
	int count;
	va_start(arguments, format);
	count = vdprintf(fd, format, arguments);
	va_end(arguments);
	return count;
}

static void streams(void)
{
	char line[32];
	FILE *stream;
	int fds[2], saved;
	makes(fds, "a line\n");
	stream = fdopen(fds[0], "r");
	CHECK(stream != NULL && fgets(line, sizeof line, stream) && strcmp(line, "a line\n") == 0);
	CHECK(write(fds[1], "more\n", 5) == 5);
	CHECK(fgets(line, sizeof line, stream) && strcmp(line, "more\n") == 0);
	fclose(stream), close(fds[1]);

	/* Printed bytes are appended. */
	makes(fds, "one ");
	CHECK(dprintf(fds[1], "%d %.1f %s ", 2, 3.5, "four") == 11);
	holds(fds[0], "one 2 3.5 four ");
	done(fds);
	makes(fds, "one ");
	CHECK(prints(fds[1], "%d", 5) == 1);
	holds(fds[0], "one 5");
	done(fds);

	makes(fds, "first ");
	saved = dup(STDOUT_FILENO);
	fflush(stdout);
	CHECK(dup2(fds[1], STDOUT_FILENO) == STDOUT_FILENO);
	printf("printed");
	fflush(stdout);
	CHECK(dup2(saved, STDOUT_FILENO) == STDOUT_FILENO);
	holds(fds[0], "first printed");
	done(fds);

	/* The lowest fd is that of a stream. */
	makes(fds, "input\n");
	close(STDIN_FILENO);
	CHECK(dup(fds[0]) == STDIN_FILENO);
	CHECK(fgets(line, sizeof line, stdin) && strcmp(line, "input\n") == 0);
	done(fds);
	close(STDIN_FILENO);
	CHECK(pipe(fds) == 0 && fds[0] == STDIN_FILENO);
	CHECK(write(fds[1], "again\n", 6) == 6);
	CHECK(fgets(line, sizeof line, stdin) && strcmp(line, "again\n") == 0);
	close(fds[1]);
}

/* An executed program writes to the pipe. */
static void programs(void)
{
	char *args[] = {"sh", "-c", "echo child", NULL};
	char *by_fd[] = {"sh", "-c", "cat <&9 >&8", NULL};
	posix_spawn_file_actions_t actions;
	FILE *stream;
	char line[32];
	int fds[2], in[2], status;
	pid_t child;

	makes(fds, "parent\n");
	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, fds[1], 1) == 0);
	CHECK(posix_spawnp(&child, "sh", &actions, NULL, args, environ) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	says(fds[0], "parent\nchild\n");
	done(fds);

	makes(fds, "parent\n");
	child = vfork();
	if (child == 0) {
		dup2(fds[1], 1);
		execvp("sh", args);
		_exit(9);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	says(fds[0], "parent\nchild\n");
	done(fds);

	/* Through inherited fds. */
	makes(in, "through");
	makes(fds, "");
	CHECK(dup2(in[0], 9) == 9 && dup2(fds[1], 8) == 8);
	close(in[0]), close(fds[1]);
	CHECK(fcntl(in[1], F_SETFD, FD_CLOEXEC) == 0);
	CHECK(posix_spawnp(&child, "sh", NULL, NULL, by_fd, environ) == 0);
	CHECK(write(in[1], " it", 3) == 3);
	close(in[1]), close(8), close(9);
	says(fds[0], "through it");
	CHECK(read(fds[0], line, 1) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	close(fds[0]);

	makes(fds, "parent\n");
	CHECK(dup2(fds[1], 9) == 9);
	CHECK(system("echo child >&9") == 0);
	says(fds[0], "parent\nchild\n");
	done(fds), close(9);
	makes(fds, "parent\n");
	CHECK(dup2(fds[1], 9) == 9);
	stream = popen("cat - >&9", "w");
	CHECK(stream != NULL && fputs("piped\n", stream) >= 0 && pclose(stream) == 0);
	says(fds[0], "parent\npiped\n");
	done(fds), close(9);
}

static char stack[1 << 16];

static int cloned(void *argument)
{
	int *fds = argument;
	char buffer[8];
	ssize_t count = syscall(SYS_read, fds[0], buffer, 8);
	return count == 3 && syscall(SYS_write, fds[1], "child", 5) == 5 ? 0 : 1;
}

static void children(void)
{
	char buffer[8];
	int fds[2], status;
	long child;
	makes(fds, "raw");
#ifdef SYS_fork
	child = syscall(SYS_fork);
#else
	child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
#endif
	if (child == 0) {
		holds(fds[0], "raw");
		CHECK(write(fds[1], "child", 5) == 5);
		_exit(0);
	}
	CHECK(waitpid((pid_t)child, &status, 0) == child && status == 0);
	holds(fds[0], "child");
	done(fds);

	makes(fds, "raw");
	child = _Fork();
	if (child == 0) {
		holds(fds[0], "raw");
		_exit(write(fds[1], "child", 5) == 5 ? 0 : 1);
	}
	CHECK(waitpid((pid_t)child, &status, 0) == child && status == 0);
	holds(fds[0], "child");
	done(fds);

	makes(fds, "raw");
	child = clone(cloned, stack + sizeof stack, SIGCHLD, fds);
	CHECK(child > 0);
	CHECK(waitpid((pid_t)child, &status, 0) == child && status == 0);
	CHECK(read(fds[0], buffer, 8) == 5);
	done(fds);
}

static void messages(void)
{
	struct epoll_event event;
	int fds[2], over[2], got, epfd = epoll_create1(0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, over) == 0);
	CHECK(write(over[0], "x", 1) == 1);
	holds(over[1], "x");
	makes(fds, "sent along");
	CHECK(add(epfd, fds[0], EPOLLIN, 4) == 0);
	send_over(over[0], fds[0]);
	got = receive_fd(over[1]);
	holds(got, "sent along");
	CHECK(epoll_wait(epfd, &event, 1, 0) == 0);
	CHECK(write(fds[1], "y", 1) == 1);
	CHECK(epoll_wait(epfd, &event, 1, 0) == 1 && event.data.u64 == 4);
	/* The pipe stays open elsewhere. */
	close(fds[0]);
	holds(got, "y");
	close(got);
	FAILS((signal(SIGPIPE, SIG_IGN), write(fds[1], "z", 1)), EPIPE);
	close(fds[1]), close(epfd), done(over);

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, over) == 0);
	CHECK(write(over[0], "abc", 3) == 3 && write(over[1], "de", 2) == 2);
	CHECK(recv(over[1], &event, 8, MSG_PEEK) == 3);
	CHECK(send(over[1], "f", 1, MSG_NOSIGNAL) == 1);
	holds(over[0], "def");
	holds(over[1], "abc");
	done(over);
}

static void moves(void)
{
	int fds[2], other[2], third[2];
	struct iovec data = {"pages", 5};
	makes(fds, "12345");
	makes(other, "0");
	makes(third, "");
	CHECK(tee(fds[0], other[1], 2, 0) == 2);
	CHECK(splice(fds[0], NULL, third[1], NULL, 3, 0) == 3);
	holds(fds[0], "45");
	holds(other[0], "012");
	holds(third[0], "123");
	CHECK(vmsplice(third[1], &data, 1, 0) == 5);
	holds(third[0], "pages");
	done(fds), done(other), done(third);

	makes(fds, "raw");
	CHECK(pipe(other) == 0);
	CHECK(syscall(SYS_splice, fds[0], NULL, other[1], NULL, 3, 0) == 3);
	holds(other[0], "raw");
	done(fds), done(other);

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0 && write(fds[0], "file: ", 6) == 6);
	int file = open("/proc/self/exe", O_RDONLY);
	CHECK(file >= 0 && sendfile(fds[0], file, NULL, 4) == 4);
	holds(fds[1], "file: \177ELF");
	done(fds), close(file);
}

static volatile sig_atomic_t signals;

static void on_io(int signal)
{
	(void)signal;
	signals++;
}

static void urgent(void)
{
	int fds[2];
	char byte = 0;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0 && write(fds[0], "x", 1) == 1);
	/* A kernel without urgent data for such sockets refuses it. */
	if (send(fds[0], "!", 1, MSG_OOB) == 1)
		CHECK(recv(fds[1], &byte, 1, MSG_OOB) == 1 && byte == '!');
	else
		CHECK(errno == EOPNOTSUPP);
	CHECK(read(fds[1], &byte, 1) == 1 && byte == 'x');
	done(fds);
}

/* Each write sends a signal. */
static void signalled(void)
{
	int fds[2], unread = 0;
	makes(fds, "x");
	CHECK(signal(SIGIO, on_io) != SIG_ERR);
	CHECK(fcntl(fds[0], F_SETOWN, getpid()) == 0);
	CHECK(fcntl(fds[0], F_SETFL, O_ASYNC) == 0);
	CHECK(write(fds[1], "y", 1) == 1);
	CHECK(signals == 1);
	holds(fds[0], "xy");
	done(fds);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0 && write(fds[0], "abc", 3) == 3);
	CHECK(ioctl(fds[0], TIOCOUTQ, &unread) == 0 && unread > 0);
	holds(fds[1], "abc");
	CHECK(ioctl(fds[0], TIOCOUTQ, &unread) == 0 && unread == 0);
	done(fds);
}

static void asynchronous(void)
{
	struct aiocb request, *list[1] = {&request};
	char buffer[8];
	int fds[2];
	makes(fds, "before");
	memset(&request, 0, sizeof request);
	request.aio_fildes = fds[0], request.aio_buf = buffer, request.aio_nbytes = sizeof buffer;
	CHECK(aio_read(&request) == 0);
	CHECK(aio_suspend((const struct aiocb *const *)list, 1, NULL) == 0);
	CHECK(aio_return(&request) == 6 && memcmp(buffer, "before", 6) == 0);
	done(fds);
	makes(fds, "listed");
	request.aio_fildes = fds[0], request.aio_lio_opcode = LIO_READ;
	CHECK(lio_listio(LIO_WAIT, list, 1, NULL) == 0);
	CHECK(aio_return(&request) == 6 && memcmp(buffer, "listed", 6) == 0);
	done(fds);
}

int main(void)
{
	streams();
	programs();
	children();
	messages();
	moves();
	urgent();
	signalled();
	asynchronous();
	return 0;
}
