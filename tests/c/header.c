/* The header alone, in every dialect: see ci/c. */
#include <upoll.h>

int main(void)
{
	struct epoll_ctl_cmd cmd;
	struct epoll_wait_params params;
	int fd = upoll_eventfd(1, 0);
	(void)sizeof(cmd);
	(void)sizeof(params);
	return fd < 0 || upoll_close(fd) != 0;
}
