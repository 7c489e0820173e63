run lambda { |_environment|
  body = Process.pid.to_s
  [200, { "Content-Type" => "text/plain", "Content-Length" => body.bytesize.to_s }, [body]]
}
