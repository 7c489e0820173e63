/* EFD_IOC_SET_MAXIMUM: writes keep an eventfd's count below it. */
#include "check.h"

#ifndef KERNEL_ONLY
static void *writes(void *fd)
{
	CHECK(eventfd_write(*(int *)fd, 5) == 0);
	return NULL;
}
#endif

int main(void)
{
#ifdef KERNEL_ONLY
	return 77;
#else
	pthread_t thread;
	uint64_t maximum = 0, value;
	int fd = eventfd(2, EFD_NONBLOCK), copy = dup(fd);
	CHECK(EFD_IOC_SET_MAXIMUM == 0x40084a00 && EFD_IOC_GET_MAXIMUM == 0x80084a01);
	CHECK(ioctl(fd, EFD_IOC_GET_MAXIMUM, &maximum) == 0 && maximum == UINT64_MAX);
	maximum = 2;
	FAILS(ioctl(fd, EFD_IOC_SET_MAXIMUM, &maximum), EINVAL);
	FAILS(ioctl(fd, EFD_IOC_SET_MAXIMUM, NULL), EFAULT);
	FAILS(ioctl(fd, EFD_IOC_GET_MAXIMUM, nowhere()), EFAULT);
	maximum = 4;
	CHECK(ioctl(fd, EFD_IOC_SET_MAXIMUM, &maximum) == 0);
	maximum = 0;
	CHECK(ioctl(copy, EFD_IOC_GET_MAXIMUM, &maximum) == 0 && maximum == 4);
	CHECK(eventfd_write(copy, 1) == 0);
	FAILS(eventfd_write(fd, 1), EAGAIN);
	CHECK(fcntl(fd, F_SETFL, 0) == 0);
	CHECK(pthread_create(&thread, NULL, writes, &fd) == 0);
	sleep_ms(50);
	maximum = 9;
	CHECK(ioctl(copy, EFD_IOC_SET_MAXIMUM, &maximum) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(eventfd_read(fd, &value) == 0 && value == 8);
	return 0;
#endif
}
